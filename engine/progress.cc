#include "progress.h"

#include "spin_lock.h"

#include <chrono>

namespace paceline::detail {
namespace {

// Completions are noticed in batches; a thread that waits for room looks for itself so often.
constexpr std::chrono::milliseconds kLookAgain{5};

// A few microseconds: small tasks end sooner than a thread falls asleep and wakes up.
constexpr int kSpins = 200;

}  // namespace

void Progress::hold_back() {
  const auto pushed = static_cast<std::int64_t>(pushed_.load(std::memory_order_relaxed));
  if (pushed - completed_seen_.load(std::memory_order_relaxed) < limit_) return;
  if (unfinished() < limit_) return;
  // Some room at once, so that producer and workers do not take turns for every task.
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

void Progress::wait_for_zero(const std::atomic<std::uint32_t>& flag) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (flag.load(std::memory_order_acquire) == 0) return;
    pause_briefly();
  }
  const Lock lock(mutex_);
  changed_.wait(mutex_, [&] { return flag.load(std::memory_order_acquire) == 0; });
}

void Progress::wake() {
  const Lock lock(mutex_);
  changed_.notify_all();
}

std::int64_t Progress::unfinished() {
  std::int64_t completed = 0;
  for (const Counter& counter : counters_) completed += counter.completed.load(std::memory_order_seq_cst);
  completed_seen_.store(completed, std::memory_order_relaxed);
  return static_cast<std::int64_t>(pushed_.load(std::memory_order_seq_cst)) - completed;
}

}  // namespace paceline::detail
