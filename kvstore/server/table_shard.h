#pragma once
// Pushes and pulls of row-sparse tables, as a shard of a server sees them: what DenseShard does for slices, for the
// partitions of tables. All of it runs on the shard's thread.

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "rows/row_table.h"
#include "sequence_window.h"
#include "served_call.h"
#include "sparse.pb.h"

namespace paceline {

class DenseShard;
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

 protected:
  Message answer() override;
};

// A partition of a table at its server. Belongs to its shard, save for the table and what never changes.
struct ServedRows {
  // Pieces of a contribution that wait for their round; the calls keep the bytes alive.
  struct Kept {
    std::vector<std::pair<std::shared_ptr<RowCall>, int>> pieces;
    std::size_t expected = 0;
    bool complete() const { return pieces.size() >= expected; }
  };
  struct Contributed {
    std::uint64_t rounds = 0;  // the round after the last that the worker pushed in
    std::uint64_t call = 0;    // by which call
  };
  using Waiting = WaitingPull<RowCall>;

  ServedRows(const TableSpec& spec, const TableLayout& layout, int number, DenseShard& owner)
      : table(spec, layout.block_bits()), layout(layout), partition(number), shard(&owner) {}

  RowTable table;
  const TableLayout layout;
  const int partition;
  DenseShard* const shard;
  std::map<int, TakenPushes> taken;              // by worker
  std::map<std::uint64_t, std::uint64_t> loads;  // by incarnation, the last load that it began
  std::uint64_t next_round = 0;                  // all before it are closed
  std::map<std::uint64_t, std::map<int, Kept>> rounds;
  std::map<int, Contributed> contributed;
  std::vector<Waiting> waiting;  // pulls that need a round
};

class TableShard {
 public:
  // All are the shard's.
  TableShard(WorkerClocks& clocks, const std::shared_ptr<const Mode>& mode, Waits& waits)
      : clocks_(clocks), mode_(mode), gate_(clocks, mode, waits) {}

  void run(const std::shared_ptr<RowCall>& call, int part);
  // Throws Corrupt unless the rows ascend and belong to the partition, and gradients are where places say.
  static void check(const RowCall::Part& part);
  // Clocks or the roster have changed: everything that waits is looked at again.
  void reconsider();
  // Rows that came after their round was closed.
  std::int64_t late() const { return late_; }

 private:
  using Waiting = ServedRows::Waiting;

  void push(Waiting& pull);
  void contribute(const std::shared_ptr<RowCall>& call, int part);
  void advance(ServedRows& served);
  void apply(ServedRows& served, const std::map<int, ServedRows::Kept>& kept);
  void answer_waiting(ServedRows& served);
  // The room for the answer to a part.
  static RowAnswer answer_to(RowCall& call, RowCall::Part& part);
  // Answers the pulls of a part, or parks it.
  void pull(Waiting waiting);

  WorkerClocks& clocks_;
  const std::shared_ptr<const Mode>& mode_;
  PullGate gate_;
  std::set<ServedRows*> active_;  // with rounds or pulls that wait
  std::vector<Waiting> waiting_for_clocks_;
  std::atomic<std::int64_t> late_{0};
};

}  // namespace paceline
