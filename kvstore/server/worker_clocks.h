#pragma once
// The clocks of the workers, as a server knows them. Not thread-safe: every shard has its own object.

#include <paceline/mode.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

#include "node.h"

namespace paceline {

namespace wire {
class StepEnd;
}

class WorkerClocks {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Keeps the clocks of workers that stay. Rounds and bounds do not wait for a worker that joins after the first
  // roster, until it sends RESUMED. The answer to RESUMED tells it the clocks of the others.
  void set_roster(const Roster& roster);
  // Takes a worker's clock from a message. Late and repeated messages change nothing.
  void step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message, Time now);
  // A pull for step `step` was held back since `asked`, and is answered at `now`. The wait does not count as part of a
  // step's time, even if the end of the previous step has not arrived yet.
  void released(int worker, std::uint64_t step, Time asked, Time now);

  // Do rounds and bounds wait for the worker? It must be live and running, not inside a barrier and not paused.
  bool contributes(int worker) const;
  bool is_live(int worker, std::uint64_t incarnation) const;
  std::uint64_t clock(int worker) const;
  // The lowest clock of the workers that contribute; none if no worker does.
  std::optional<std::uint64_t> slowest() const { return slowest_; }
  // Returns what Mode::may_pull() gets when the worker asks at `asked` for the weights of its step number `step`.
  Progress progress(int worker, std::uint64_t step, Time asked) const;
  // The clocks of the live workers other than `worker`. `slowest` counts only workers that contribute, unless none
  // does. `fastest` counts all. {0, 0} if there is no other worker.
  struct Range {
    std::uint64_t slowest = 0, fastest = 0;
  };
  Range others(int worker) const;

  template <class Visitor>
  void for_each_contributing(Visitor visit) const {
    for (const auto& [rank, worker] : workers_)
      if (worker.running()) visit(rank, worker.clock);
  }

 private:
  struct Worker {
    std::uint64_t incarnation = 0;
    std::uint64_t clock = 0;
    std::uint64_t inside = 0;   // last barrier that it entered
    std::uint64_t through = 0;  // last barrier that it left
    std::uint64_t paused = 0;   // last pause that it entered
    std::uint64_t resumed = 0;  // last pause that it left
    bool finished = false;
    std::optional<Time> began = {};  // when its present step began, as this server sees it
    double step_seconds = 0;         // seconds of its last step; 0: not known
    bool running() const { return !finished && inside <= through && paused <= resumed; }
  };
  void find_slowest();

  std::map<int, Worker> workers_;
  std::optional<std::uint64_t> slowest_;
  bool started_ = false;
};

}  // namespace paceline
