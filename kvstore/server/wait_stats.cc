#include "wait_stats.h"

#include <algorithm>

namespace paceline {

void WaitStats::hold(int worker, std::uint64_t step) {
  Lock lock(mutex_);
  Entry& entry = entries_[worker];
  if (entry.sum.times == 0 || entry.step != step) ++entry.sum.times;
  entry.step = step;
}

void WaitStats::release(int worker, Time since, Time now) {
  Lock lock(mutex_);
  Entry& entry = entries_[worker];
  entry.sum.seconds += std::max(0.0, std::chrono::duration<double>(now - std::max(since, entry.until)).count());
  entry.until = std::max(entry.until, now);
}

void WaitStats::ahead(std::int64_t clocks) {
  std::int64_t furthest = furthest_ahead_;
  while (clocks > furthest && !furthest_ahead_.compare_exchange_weak(furthest, clocks)) {
  }
}

std::map<int, WaitStats::OfWorker> WaitStats::workers() const {
  std::map<int, OfWorker> workers;
  Lock lock(mutex_);
  for (const auto& [worker, entry] : entries_) workers[worker] = entry.sum;
  return workers;
}

}  // namespace paceline
