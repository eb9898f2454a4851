#pragma once
// How long the mode has held back the pulls of each worker at a server, and how far a worker got ahead. Thread-safe.
// The shards of a server share one object.

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
    std::int64_t times = 0;  // steps that had to wait, including one that waits now
  };

  // A pull is held back. The worker will compute step number `step` from the pulled weights.
  void hold(int worker, std::uint64_t step);
  // A pull that came at `since` and was held back is answered at `now`. Overlapping waits of a worker's pulls count
  // once.
  void release(int worker, Time since, Time now);
  // A worker may compute a step that is `clocks` ahead of the slowest worker.
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
