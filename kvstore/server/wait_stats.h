#pragma once
// What a mode did to the workers of a server: how long each was held back, and how far one got ahead. Thread-safe; the
// shards of a server share one.

#include <paceline/mutex.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>

namespace paceline {

class WaitStats {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct OfWorker {
    double seconds = 0;
    std::int64_t times = 0;  // steps that it waited to begin, the present one with them
  };

  // A pull is held back, which the worker will compute its step of that number from.
  void hold(int worker, std::uint64_t step);
  // One that came at `since` and was held back is answered now. Pulls that wait at the same time count once.
  void release(int worker, Time since, Time now);
  // A worker was let go to compute a step at so many clocks ahead of the slowest.
  void ahead(std::int64_t clocks);

  std::map<int, OfWorker> workers() const;
  std::int64_t furthest_ahead() const { return furthest_ahead_; }

 private:
  struct Entry {
    OfWorker sum;
    std::uint64_t step = 0;
    Time until;
  };
  mutable Mutex mutex_;
  std::map<int, Entry> entries_ PACELINE_GUARDED_BY(mutex_);
  std::atomic<std::int64_t> furthest_ahead_{0};
};

}  // namespace paceline
