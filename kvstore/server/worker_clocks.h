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

  // Keeps the clocks of workers that stay. No round or bound waits for a worker that joins after the first roster,
  // until it resumes. By resuming it learns the clocks of the others.
  void set_roster(const Roster& roster);
  // Takes a worker's clock from a message. Late and repeated messages change nothing.
  void step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message, Time now);
  // The worker was held back since `asked` before step `step`, and goes on now. This wait does not count as time of a
  // step, even if the end of the step before has not arrived yet.
  void released(int worker, std::uint64_t step, Time asked, Time now);

  // Do rounds and bounds wait for the worker? It must be live and running, not inside a barrier and not paused.
  bool contributes(int worker) const;
  bool is_live(int worker, std::uint64_t incarnation) const;
  std::uint64_t clock(int worker) const;
  // The lowest clock of the workers that contribute; none if no worker does.
  std::optional<std::uint64_t> slowest() const { return slowest_; }
  // What Mode::may_pull() sees: the worker asks at `asked` for the weights of its step number `step`.
  Progress progress(int worker, std::uint64_t step, Time asked) const;
  // Clocks of the live workers other than `worker`: the slowest that contributes, or the slowest of all if no worker
  // does; and the fastest of all. {0, 0} if there is no other worker.
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
    std::uint64_t paused = 0;   // last pause that it entered; resumed: last pause that it left
    std::uint64_t resumed = 0;
    bool finished = false;
    std::optional<Time> began = {};  // of its present step, as this server sees it
    double step_seconds = 0;         // of its last step; 0: not known
    bool running() const { return !finished && inside <= through && paused <= resumed; }
  };
  void find_slowest();

  std::map<int, Worker> workers_;
  std::optional<std::uint64_t> slowest_;
  bool started_ = false;
};

}  // namespace paceline
