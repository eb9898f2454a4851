#pragma once
// A part of a server: one thread that owns some partitions of dense keys and of tables. While the shard is idle,
// another thread may run a short job in its place. Only one thread at a time works on the partitions, so they need no
// locks.

#include <paceline/mode.h>
#include <paceline/mutex.h>
#include <paceline/unique_function.h>

#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "sequencer.h"
#include "served_call.h"
#include "served_partition.h"
#include "table_shard.h"

namespace paceline {

class ServerShard {
 public:
  using Job = UniqueFunction<void(ServerShard&)>;

  ServerShard(WaitStats& waits, int number);
  // Runs the posted jobs, then stops.
  ~ServerShard();

  // Runs `job` on the shard's thread, after earlier jobs.
  void post(Job job);
  // As post(), but if no job runs or waits, runs `job` at once on the calling thread. For jobs that take less time than
  // waking a thread.
  void post_short(Job job);

  // Only jobs may call the functions below, except tables() and late().

  void set_mode(std::shared_ptr<const Mode> mode);
  void add(ServedPartition& partition) { partitions_.push_back(&partition); }
  void run(const std::shared_ptr<PushPullCall>& call, int part) { sequencer_->run(call, part); }
  void agree(const Request& request, const wire::AgreeRequest& message, ServedPartition& partition) {
    sequencer_->agree(request, message, partition);
  }
  // Takes a worker's kStepEnd. Calls `done` with the clocks of the other workers. In modes with Applies::kInRounds,
  // `done` is called only when the worker is at most kFurthestAhead steps ahead of the slowest, or is gone. A worker
  // blocks when several steps are unanswered, so the server keeps the gradients of few rounds.
  using StepDone = UniqueFunction<void(WorkerClocks::Range)>;
  static constexpr std::uint64_t kFurthestAhead = 2;
  void step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message, StepDone done);
  void set_roster(const Roster& roster);
  // Applies a copy of the entry to every partition.
  template <class Entry>
  void apply_to_all(const Entry& entry) {
    for (ServedPartition* const partition : partitions_) {
      Entry own = entry;
      partition->state.apply(own);
    }
    tables_.apply_to_all(entry);
  }
  // Forgets rounds that failed under earlier rules, so that calls are no longer refused because of these rounds.
  void forget_failures() {
    for (ServedPartition* const partition : partitions_) partition->failures.clear();
    tables_.forget_failures();
  }
  TableShard& tables() { return tables_; }
  // The number of gradients that came after their round was closed. Thread-safe.
  std::int64_t late() const { return late_; }

 private:
  void loop();
  void run_job(Job& job);
  void reconsider();
  void answer_steps();

  struct EndedStep {
    int worker;
    std::uint64_t incarnation, clock;
    StepDone done;
  };

  std::shared_ptr<const Mode> mode_;
  WorkerClocks clocks_;
  PullGate gate_;
  std::atomic<std::int64_t> late_{0};
  TableShard tables_;
  std::vector<ServedPartition*> partitions_;
  std::unique_ptr<Sequencer> sequencer_;
  std::vector<EndedStep> ended_;  // steps whose `done` was not called yet

  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ PACELINE_GUARDED_BY(mutex_);
  bool running_ PACELINE_GUARDED_BY(mutex_) = false;  // some thread runs jobs
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline
