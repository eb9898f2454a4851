#include "thread_role.h"

#include <paceline/detail/device_runtime.h>
#include <paceline/detail/run_ahead.h>
#include <paceline/mutex.h>

#include <chrono>

namespace paceline::detail {

struct RunAhead::OfThread {
  explicit OfThread(std::int64_t most_bytes) : most(most_bytes), limit(most_bytes) {}

  const std::int64_t most;
  std::atomic<std::int64_t> bytes = 0;
  std::int64_t limit;  // the thread's own
  Mutex mutex;
  CondVar changed;

  void wait_for_room() {
    constexpr std::chrono::seconds kPatience{1};
    const Lock lock(mutex);
    for (;;) {
      const std::int64_t before = bytes;
      const bool room = changed.wait_for(mutex, kPatience, [&] { return bytes <= most / 2; });
      if (!room && bytes < before) continue;
      limit = room ? most : before + most;
      return;
    }
  }
};

RunAhead::RunAhead(std::int64_t bytes, Device device) : bytes_(bytes) {
  // Counting takes as long as filling this much; the queue's bound is enough for them.
  constexpr std::int64_t kFewBytes = 16384;
  if (bytes < kFewBytes || thread_role().never_held_back) return;
  if (device.is_cpu()) {
    static thread_local const auto on_cpus = std::make_shared<OfThread>(kMost);
    of_thread_ = on_cpus;
  } else {
    static thread_local const auto on_accelerators = std::make_shared<OfThread>(runtime(device).run_ahead_bytes());
    of_thread_ = on_accelerators;
  }
  if (of_thread_->bytes > of_thread_->limit) of_thread_->wait_for_room();
  of_thread_->bytes += bytes;
}

RunAhead::~RunAhead() {
  if (!of_thread_) return;
  const std::int64_t before = of_thread_->bytes.fetch_sub(bytes_);
  if (before <= of_thread_->most / 2 || before - bytes_ > of_thread_->most / 2) return;
  const Lock lock(of_thread_->mutex);
  of_thread_->changed.notify_one();
}

}  // namespace paceline::detail
