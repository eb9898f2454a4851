#pragma once
// How far each worker is, as a server knows it. Not thread-safe: every shard keeps its own.

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

  // Keeps the clocks of workers that stay. One that comes after the first roster holds nobody back before it resumes,
  // which is how it learns the others' clocks.
  void set_roster(const Roster& roster);
  // Late and repeated messages change nothing.
  void step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message, Time now);
  // The worker, held back since `asked` before its step `step`, goes on. That is no part of a step's time, whether the
  // end of the step before has come already or not.
  void released(int worker, std::uint64_t step, Time asked, Time now);

  // Live, not finished, not inside a barrier or paused: rounds and bounds wait for it.
  bool contributes(int worker) const;
  bool is_live(int worker, std::uint64_t incarnation) const;
  std::uint64_t clock(int worker) const;
  // Over those that contribute; none if nobody does.
  std::optional<std::uint64_t> slowest() const { return slowest_; }
  // For the mode: the worker asks at `asked` for weights to compute its step of number `step` from.
  Progress progress(int worker, std::uint64_t step, Time asked) const;
  // Of the live workers besides `worker`: the slowest that contributes (if nobody does, the slowest of all), and the
  // fastest of all; {0, 0} if there is none.
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
    std::uint64_t inside = 0;   // barrier that it waits in
    std::uint64_t through = 0;  // last barrier that it left
    std::uint64_t paused = 0;   // the same for pauses of its own
    std::uint64_t resumed = 0;
    bool finished = false;
    std::optional<Time> began = {};  // its present step, as far as is seen from here
    double step_seconds = 0;         // of its last step; 0: not known
    bool running() const { return !finished && inside <= through && paused <= resumed; }
  };
  void find_slowest();

  std::map<int, Worker> workers_;
  std::optional<std::uint64_t> slowest_;
  bool started_ = false;
};

}  // namespace paceline
