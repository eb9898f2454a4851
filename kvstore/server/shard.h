#pragma once
// A part of a server: one thread that owns some partitions, dense ones and those of tables. Everything that concerns
// them happens on it, so nothing is locked. While it rests, another thread may run a short job in its place.

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
  // Runs what was posted, then stops.
  ~ServerShard();

  // Runs `job` on the shard's thread, after those posted before.
  void post(Job job);
  // The same, at once on the calling thread where none is running or waiting: for jobs shorter than a wake-up.
  void post_short(Job job);

  // The functions below belong to the shard's thread.

  void set_mode(std::shared_ptr<const Mode> mode);
  void add(ServedPartition& partition) { partitions_.push_back(&partition); }
  void run(const std::shared_ptr<PushPullCall>& call, int part) { sequencer_->run(call, part); }
  void agree(const Request& request, const wire::AgreeRequest& message, ServedPartition& partition) {
    sequencer_->agree(request, message, partition);
  }
  WorkerClocks::Range step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message);
  void set_roster(const Roster& roster);
  // Applies an entry of that kind to every partition.
  template <class Entry>
  void apply_to_all(const Entry& entry) {
    for (ServedPartition* const partition : partitions_) {
      Entry own = entry;
      partition->state.apply(own);
    }
    tables_.apply_to_all(entry);
  }
  // Rounds that could not be applied under earlier rules are no reason to refuse pulls under these.
  void forget_failures() {
    for (ServedPartition* const partition : partitions_) partition->failures.clear();
    tables_.forget_failures();
  }
  TableShard& tables() { return tables_; }
  // Pushes that came after their round was closed. Thread-safe.
  std::int64_t late() const { return late_; }

 private:
  void loop();
  void run_job(Job& job);
  void reconsider();

  std::shared_ptr<const Mode> mode_;
  WorkerClocks clocks_;
  PullGate gate_;
  std::atomic<std::int64_t> late_{0};
  TableShard tables_;
  std::vector<ServedPartition*> partitions_;
  std::unique_ptr<Sequencer> sequencer_;

  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ PACELINE_GUARDED_BY(mutex_);
  bool running_ PACELINE_GUARDED_BY(mutex_) = false;  // jobs, on some thread
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline
