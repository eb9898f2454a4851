#include "thread_role.h"

#include <paceline/detail/run_ahead.h>
#include <paceline/mutex.h>

#include <chrono>

namespace paceline::detail {

struct RunAhead::OfThread {
  std::atomic<std::int64_t> bytes = 0;
  std::int64_t limit = kMost;  // the thread's own
  Mutex mutex;
  CondVar changed;

  void wait_for_room() {
    constexpr std::chrono::seconds kPatience{1};
    const Lock lock(mutex);
    for (;;) {
      const std::int64_t before = bytes;
      const bool room = changed.wait_for(mutex, kPatience, [&] { return bytes <= kMost / 2; });
      if (!room && bytes < before) continue;
      limit = room ? kMost : before + kMost;
      return;
    }
  }
};

RunAhead::RunAhead(std::int64_t bytes) : bytes_(bytes) {
  // Counting takes as long as filling this much; the queue's bound is enough for them.
  constexpr std::int64_t kFewBytes = 16384;
  if (bytes < kFewBytes || thread_role().never_held_back) return;
  static thread_local const auto of_this_thread = std::make_shared<OfThread>();
  of_thread_ = of_this_thread;
  if (of_thread_->bytes > of_thread_->limit) of_thread_->wait_for_room();
  of_thread_->bytes += bytes;
}

RunAhead::~RunAhead() {
  if (!of_thread_) return;
  const std::int64_t before = of_thread_->bytes.fetch_sub(bytes_);
  if (before <= kMost / 2 || before - bytes_ > kMost / 2) return;
  const Lock lock(of_thread_->mutex);
  of_thread_->changed.notify_one();
}

}  // namespace paceline::detail
