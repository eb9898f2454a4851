#pragma once
// How many tasks are unfinished, counted without a line of memory that all threads write; and the threads that wait for
// that number, or for one variable.

#include <paceline/detail/waiting_work.h>
#include <paceline/mutex.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>

namespace paceline::detail {

class Progress {
 public:
  explicit Progress(std::int64_t limit) : limit_(limit) {}

  // The id of a new task, in push order from 1.
  std::uint64_t begin() { return pushed_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // A task is complete. `thread` chooses a counter.
  void end(int thread) {
    counters_[static_cast<std::size_t>(thread) % kCounters].completed.fetch_add(1, std::memory_order_seq_cst);
  }

  // Wakes the threads whose wait is over. Whoever called end() calls this before it rests, and now and then.
  void notice() {
    const std::int64_t level = wanted_.load(std::memory_order_seq_cst);
    if (level >= 0 && unfinished() <= level) wake();
  }

  // Returns when fewer tasks than the limit are unfinished.
  void hold_back();
  void wait_for_all() { wait_for_level(0); }

  // Works or blocks until `flag` is zero; whoever makes it zero calls wake() afterwards.
  void wait_for_zero(const std::atomic<std::uint32_t>& flag);
  void wake();

 private:
  static constexpr std::size_t kCounters = 16;
  struct alignas(64) Counter {
    std::atomic<std::int64_t> completed = 0;
  };

  void wait_for_level(std::int64_t level);
  // False where there is no work for this thread.
  bool work_until_zero(const std::atomic<std::uint32_t>& flag);
  // Never less than the truth: what is complete is summed before what was pushed is read.
  std::int64_t unfinished();

  const std::int64_t limit_;
  alignas(64) std::atomic<std::uint64_t> pushed_ = 0;
  std::atomic<std::int64_t> completed_seen_ = 0;
  alignas(64) std::atomic<std::int64_t> wanted_ = -1;  // the largest of levels_, or -1
  Mutex mutex_;
  CondVar changed_;
  std::multiset<std::int64_t> levels_ PACELINE_GUARDED_BY(mutex_);  // numbers of unfinished tasks that threads wait for
  std::shared_ptr<WaitingWork> work_ PACELINE_GUARDED_BY(mutex_);   // of the thread `working_`, while it waits
  std::thread::id working_ PACELINE_GUARDED_BY(mutex_);
  std::array<Counter, kCounters> counters_;
};

}  // namespace paceline::detail
