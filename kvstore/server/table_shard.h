#pragma once
// Pushes and pulls of row-sparse tables, as a shard of a server sees them: what a Sequencer does for dense keys. Rounds
// are those of a table's partition. All of it runs on the shard's thread.

#include <atomic>
#include <exception>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "rows/row_partition.h"
#include "served_call.h"
#include "sparse.pb.h"

namespace paceline {

class ServerShard;
struct ServedRows;

// A kPushPullRows request.
struct RowCall final : ServedCall {
  struct Part {
    ServedRows* served = nullptr;
    RowGradients push;
    std::size_t sums = 0;  // of the push
    std::span<const std::int64_t> pulled;
    std::shared_ptr<std::byte[]> versions, values;  // of the pulled rows, once they were read
    bool same = false;                              // the rows pulled are those pushed
  };

  wire::PushPullRowsRequest body;
  std::vector<Part> parts;
  std::vector<std::unique_ptr<std::byte[]>> aligned;  // what a transport did not align

  using ServedCall::ServedCall;
  WorkerIncarnation from() const { return {worker(), request.incarnation()}; }

 protected:
  Message answer() override;
};

// A partition of a table at its server, and who waits for it. Belongs to its shard, save for figures and sizes.
struct ServedRows {
  RowPartition state;
  ServerShard* const shard;
  std::vector<WaitingPull<RowCall>> waiting;  // pulls that need a round
  std::exception_ptr failure;                 // of the last round, where it could not be applied

  ServedRows(const TableSpec& spec, const TableLayout& layout, std::uint32_t number,
             std::shared_ptr<const Staleness> policy, ServerShard& owner)
      : state(spec, layout, number, std::move(policy)), shard(&owner) {}
};

class TableShard {
 public:
  // All are the shard's.
  TableShard(const WorkerClocks& clocks, const std::shared_ptr<const Mode>& mode, PullGate& gate)
      : clocks_(clocks), mode_(mode), gate_(gate) {}

  void run(const std::shared_ptr<RowCall>& call, int part);
  // Throws Corrupt unless the rows ascend and belong to the partition, and gradients are where places say.
  static void check(const RowCall::Part& part);
  void add(ServedRows& rows) { partitions_.push_back(&rows); }
  template <class Entry>
  void apply_to_all(const Entry& entry) {
    for (ServedRows* const served : partitions_) {
      Entry own = entry;
      served->state.apply(own);
    }
  }
  void forget_failures() {
    for (ServedRows* const served : partitions_) served->failure = nullptr;
  }
  // Clocks or the roster have changed: everything that waits is looked at again.
  void reconsider();
  // Rows that came after their round was closed.
  std::int64_t late() const { return late_; }

 private:
  using Waiting = WaitingPull<RowCall>;

  void push(Waiting& pull);
  void contribute(const std::shared_ptr<RowCall>& call, RowPushEntry& entry, ServedRows& served);
  // The round after those that are over, by the clocks, too: one that nobody contributed to is over when every worker
  // is past it.
  std::uint64_t next_round(const RowPartition& state) const;
  void advance(ServedRows& served);
  void answer_waiting(ServedRows& served);
  // The room for the answer to a part.
  static RowAnswer answer_to(RowCall& call, RowCall::Part& part);
  // Answers the pulls of a part, or parks it.
  void pull(Waiting waiting);

  const WorkerClocks& clocks_;
  const std::shared_ptr<const Mode>& mode_;
  PullGate& gate_;
  std::vector<ServedRows*> partitions_;
  std::set<ServedRows*> active_;  // with rounds or pulls that wait
  std::vector<Waiting> waiting_for_clocks_;
  std::atomic<std::int64_t> late_{0};
};

}  // namespace paceline
