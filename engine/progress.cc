#include "progress.h"

#include <paceline/detail/spin_lock.h>

#include <chrono>
#include <utility>

namespace paceline::detail {
namespace {

// Workers report completions in batches. So a thread that waits for a number of unfinished tasks also counts them
// itself, after each of these intervals.
constexpr std::chrono::milliseconds kLookAgain{5};

// Threads spin for a few microseconds, then sleep. Small tasks end sooner than a thread falls asleep and wakes up.
constexpr int kSpins = 200;

struct Offered {
  Mutex mutex;
  std::weak_ptr<WaitingWork> work PACELINE_GUARDED_BY(mutex);
};

Offered& offered() {
  static Offered& offered = *new Offered;  // threads may wait while the program ends
  return offered;
}

}  // namespace

void offer_waiting_work(std::weak_ptr<WaitingWork> work) {
  const Lock lock(offered().mutex);
  offered().work = std::move(work);
}

std::shared_ptr<WaitingWork> waiting_work() {
  const Lock lock(offered().mutex);
  return offered().work.lock();
}

void Progress::hold_back() {
  const auto pushed = static_cast<std::int64_t>(pushed_.load(std::memory_order_relaxed));
  if (pushed - completed_seen_.load(std::memory_order_relaxed) < limit_) return;
  if (unfinished() < limit_) return;
  // Waits until a quarter of the limit is free, so that producer and workers do not take turns for every task.
  wait_for_level(limit_ - 1 - limit_ / 4);
}

void Progress::wait_for_level(std::int64_t level) {
  const Lock lock(mutex_);
  const auto mine = levels_.insert(level);
  wanted_.store(*levels_.rbegin(), std::memory_order_seq_cst);
  while (unfinished() > level) changed_.wait_for(mutex_, kLookAgain, [&] { return unfinished() <= level; });
  levels_.erase(mine);
  wanted_.store(levels_.empty() ? -1 : *levels_.rbegin(), std::memory_order_seq_cst);
}

bool Progress::work_until_zero(const std::atomic<std::uint32_t>& flag) {
  const std::shared_ptr<WaitingWork> work = waiting_work();
  if (!work) return false;
  {
    const Lock lock(mutex_);
    if (work_) return false;
    work_ = work;
    working_ = std::this_thread::get_id();
  }
  const bool zero = work->work_until([&flag] { return flag.load(std::memory_order_acquire) == 0; });
  const Lock lock(mutex_);
  work_.reset();
  return zero;
}

void Progress::wait_for_zero(const std::atomic<std::uint32_t>& flag) {
  if (work_until_zero(flag)) return;
  for (int spin = 0; spin < kSpins; ++spin) {
    if (flag.load(std::memory_order_acquire) == 0) return;
    pause_briefly();
  }
  const Lock lock(mutex_);
  changed_.wait(mutex_, [&] { return flag.load(std::memory_order_acquire) == 0; });
}

void Progress::wake() {
  std::shared_ptr<WaitingWork> work;
  {
    const Lock lock(mutex_);
    changed_.notify_all();
    if (work_ && working_ != std::this_thread::get_id()) work = work_;
  }
  if (work) work->look_again();
}

std::int64_t Progress::unfinished() {
  std::int64_t completed = 0;
  for (const Counter& counter : counters_) completed += counter.completed.load(std::memory_order_seq_cst);
  completed_seen_.store(completed, std::memory_order_relaxed);
  return static_cast<std::int64_t>(pushed_.load(std::memory_order_seq_cst)) - completed;
}

}  // namespace paceline::detail
