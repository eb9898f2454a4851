#pragma once
// Pushes and pulls of row-sparse tables at a shard of a server. A TableShard does for tables what a Sequencer does for
// dense keys. Each partition of a table has rounds of its own. Everything runs on the shard's thread.

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
    std::shared_ptr<std::byte[]> versions, values;  // of the pulled rows, after the read
    bool same = false;                              // the call pulls the rows that it pushes
  };

  wire::PushPullRowsRequest body;
  std::vector<Part> parts;
  std::vector<std::unique_ptr<std::byte[]>> aligned;  // copies of runs that a transport did not align

  using ServedCall::ServedCall;
  WorkerIncarnation from() const { return {worker(), request.incarnation()}; }

 protected:
  Message answer() override;
};

// A partition of a table at its server, with the pulls that wait for it. Only its shard may use it. Other threads may
// read figures and sizes.
struct ServedRows {
  RowPartition state;
  ServerShard* const shard;
  std::vector<WaitingPull<RowCall>> waiting;  // pulls that need a round
  std::exception_ptr failure;                 // of the last round, if it could not be applied

  ServedRows(const TableSpec& spec, const TableLayout& layout, std::uint32_t number,
             std::shared_ptr<const Staleness> policy, ServerShard& owner)
      : state(spec, layout, number, std::move(policy)), shard(&owner) {}
};

class TableShard {
 public:
  // All arguments belong to the shard.
  TableShard(const WorkerClocks& clocks, const std::shared_ptr<const Mode>& mode, PullGate& gate)
      : clocks_(clocks), mode_(mode), gate_(gate) {}

  void run(const std::shared_ptr<RowCall>& call, int part);
  // Throws Corrupt unless the rows ascend and belong to the partition, and the places of gradients exist.
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
  // Clocks or the roster have changed. Checks everything that waits.
  void reconsider();
  // The number of rows that came after their round was closed.
  std::int64_t late() const { return late_; }

 private:
  using Waiting = WaitingPull<RowCall>;

  void push(Waiting& pull);
  void contribute(const std::shared_ptr<RowCall>& call, RowPushEntry& entry, ServedRows& served);
  // The first round that is not over. A round without contributions is over when the clock of every worker is past it.
  std::uint64_t next_round(const RowPartition& state) const;
  void advance(ServedRows& served);
  void answer_waiting(ServedRows& served);
  // Memory for the answer to a part.
  static RowAnswer answer_to(RowCall& call, RowCall::Part& part);
  // Answers the pulls of a part, or holds the part back.
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
