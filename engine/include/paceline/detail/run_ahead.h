#pragma once
// Bounds the memory that a thread has allocated for tasks that have not run: a thread that issues faster than its tasks
// run is held back, so that what earlier tasks no longer need is given back before more is asked for.

#include <paceline/device.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace paceline::detail {

// What one task will fill of new memory. Belongs to the task's closure: destroying it says that the task is complete.
class RunAhead {
 public:
  static constexpr std::int64_t kMost = std::int64_t{64} << 20;

  // Where tasks that the calling thread has pushed to CPUs hold more than kMost bytes, or those it has pushed to
  // accelerators more than run_ahead_bytes() of the first, waits until half of it is free. Where nothing becomes free
  // for a second, they may wait for what this thread has yet to do: it may have as many bytes more. Threads that the
  // engine's queue never holds back (those of engines, tasks) are not held back here either.
  explicit RunAhead(std::int64_t bytes, Device device = {});
  ~RunAhead();
  RunAhead(RunAhead&& other) noexcept : of_thread_(std::move(other.of_thread_)), bytes_(other.bytes_) {}
  RunAhead& operator=(RunAhead&&) = delete;

  struct OfThread;

 private:
  std::shared_ptr<OfThread> of_thread_;  // null: nothing is counted
  std::int64_t bytes_;
};

}  // namespace paceline::detail
