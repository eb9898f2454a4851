#pragma once
// A backend's requests to the scheduler, in every mode: barriers, facts, positions of data, and agreement on the rules.

#include <paceline/backend.h>
#include <paceline/error.h>
#include <paceline/mutex.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "barrier_number.h"
#include "node.h"
#include "send/store_call.h"

namespace google::protobuf {
class MessageLite;
}

namespace paceline {

// The commits that this worker has sent and that the scheduler has not acknowledged. Thread-safe.
class OpenCommits {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Records a commit that is sent now. Returns what remove() gets when it is acknowledged.
  Time add();
  void remove(Time sent);
  // Blocks while three commits are open and the oldest is older than 100 ms. Positions that the scheduler does not know
  // as committed are delivered again if this worker is lost. So the worker does not train on for long without answers.
  void wait_for_room();

 private:
  Mutex mutex_;
  CondVar fewer_;
  std::multiset<Time> sent_ PACELINE_GUARDED_BY(mutex_);
};

class SchedulerClient {
 public:
  explicit SchedulerClient(Node& node) : node_(node) {}

  // Each function that sends a request blocks, and throws as Node::ask_and_wait() does.

  Message ask(MessageKind kind, const google::protobuf::MessageLite& body);
  // Returns the number of the last barrier that all workers have passed, and whether this worker joined after the
  // start. If it did, and that barrier belongs to no epoch, this worker numbers its own barriers from there on.
  std::pair<std::uint64_t, bool> standing();
  // Returns the number of this worker's next barrier (barrier_number.h).
  std::uint64_t next_barrier() { return ++barriers_; }
  // Has this worker asked for a part of an epoch?
  bool in_epoch() const { return !is_plain_barrier(barriers_); }
  // Blocks until all live workers have come to barrier `number`. Returns the largest clock of these workers. A backend
  // may number its barriers itself, from 1. Such a number counts within the current epoch. `joining`: this worker has
  // no weights yet, so it cannot be the leader.
  std::uint64_t meet(std::uint64_t number, std::uint64_t clock, bool joining = false) {
    return gather(number, clock, joining, {}, {}).first;
  }
  // As meet(), but also exchanges the values of Backend::all_gather(). Call require_one_name() when the barrier is
  // over.
  std::pair<std::uint64_t, GatheredValues> gather(std::uint64_t number, std::uint64_t clock, bool joining,
                                                  const std::string& name, const std::string& value);
  // Returns the rank of the leader, which Backend::leads() defines. Does not block.
  int leader() const;
  // Returns the leader of the last barrier, even if it was lost since. So all workers that were there agree about it.
  int met_leader() const { return leader_; }
  // Throws InvalidArgument if another worker has given other `rules` in its call number `call`.
  void agree_on_rules(std::uint32_t call, const std::string& rules);

  // Throws InvalidArgument, once, if workers met under different names since the last call, or one with a name and
  // another without.
  void require_one_name() {
    const std::string mismatch = std::exchange(mismatch_, {});
    require(mismatch.empty(), mismatch);
  }

  // As the functions of Backend with these names.
  void put_fact(const std::string& name, const std::string& value);
  Facts facts(const std::string& prefix);
  std::pair<int, int> data_part(std::int64_t epoch);
  void data_begin(std::int64_t epoch, const DataPlan& plan);
  PositionRanges data_committed(std::int64_t epoch);
  std::vector<std::string> data_notes(std::int64_t epoch);
  PositionRanges data_take_over(std::int64_t epoch, bool wait, PieceSize size);
  static Message commit_message(std::int64_t epoch, const PositionRanges& done, const std::string& note);
  // The commits of this worker, which every backend adds to.
  const std::shared_ptr<OpenCommits>& commits() const { return commits_; }
  // Blocks as OpenCommits::wait_for_room() does. Returns an action that sends a commit through `outbox`, which must
  // outlive it. The action sends nothing if `failed` has an error now, or if its argument is one. `pending` counts the
  // commit while it is open.
  Delivery::Action commit(Outbox& outbox, const std::shared_ptr<Pending>& pending, Answers& failed, std::int64_t epoch,
                          const PositionRanges& done, const std::string& note);

 private:
  Node& node_;
  std::uint64_t epoch_ = 0;  // barriers_before() of the current epoch of data
  std::uint64_t barriers_ = 0, take_overs_ = 0, begins_ = 0, puts_ = 0;
  std::string mismatch_;
  const std::shared_ptr<OpenCommits> commits_ = std::make_shared<OpenCommits>();
  std::atomic<int> leader_ = -1;  // the leader of the last barrier; -1: none yet
};

}  // namespace paceline
