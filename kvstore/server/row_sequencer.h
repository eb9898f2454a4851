#pragma once
// Decides when pushes of rows are applied and when pulls of rows are answered. It is for tables what Sequencer is for
// dense keys. Each partition of a table has its own rounds. All functions of RowSequencer run on the shard's thread.

#include <paceline/mode.h>

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "failed_rounds.h"
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
    std::size_t sums = 0;  // number of rows at push.sums
    std::span<const std::int64_t> pulled;
    std::shared_ptr<std::byte[]> versions, values;  // of the pulled rows; null until the rows are read
    bool same = false;                              // the pulled rows are the pushed rows
  };

  wire::PushPullRowsRequest body;
  std::vector<Part> parts;
  std::vector<std::unique_ptr<std::byte[]>> aligned;  // copies of arrays that a transport did not align

  using ServedCall::ServedCall;
  WorkerIncarnation from() const { return {worker(), request.incarnation()}; }

 protected:
  Message answer() override;
};

// A partition of a table at its server, with the pulls that wait for it. Only its shard may use it. Other threads may
// read sizes and figures.
struct ServedRows {
  RowPartition state;
  ServerShard* const shard;
  std::vector<WaitingPull<RowCall>> waiting;  // pulls that wait for a round
  FailedRounds failed;

  ServedRows(const TableSpec& spec, const TableLayout& layout, std::uint32_t number, const Extensions& own,
             ServerShard& owner)
      : state(spec, layout, number, own), shard(&owner) {}
};

class RowSequencer {
 public:
  using Waiting = WaitingPull<RowCall>;

  // All members belong to the shard, which outlives the RowSequencer.
  struct Context {
    const WorkerClocks& clocks;
    PullGate& gate;
    std::atomic<std::int64_t>& late;  // rows that came after their round was closed
  };

  RowSequencer(std::shared_ptr<const Mode> mode, const Context& shard) : mode_(std::move(mode)), shard_(shard) {}
  virtual ~RowSequencer() = default;
  RowSequencer(const RowSequencer&) = delete;

  // Takes the gradients of a part, and answers its pulls or holds them back. Throws the error to refuse the call with.
  void run(const std::shared_ptr<RowCall>& call, int part);
  // Clocks or the roster have changed. Checks everything that waits. Drops pulls of workers that are gone.
  virtual void reconsider() = 0;

 protected:
  virtual void push(Waiting& pull, RowPushEntry& entry) = 0;
  // Answers the pulls of a part, or holds the part back.
  virtual void pull(Waiting waiting) = 0;

  static RowCall::Part& part_of(const Waiting& waiting) {
    return waiting.call->parts[static_cast<std::size_t>(waiting.part)];
  }
  static std::uint64_t need_of(const Waiting& waiting) { return waiting.call->body.parts(waiting.part).need(); }
  // Does the part pull rows that were not read together with its push?
  static bool reads(const Waiting& waiting) { return !part_of(waiting).pulled.empty() && !part_of(waiting).values; }
  bool is_gone(const Waiting& waiting) const {
    return !shard_.clocks.is_live(waiting.call->worker(), waiting.call->request.incarnation());
  }
  // Allocates memory for the answer to a part.
  static RowAnswer answer_to(const Waiting& waiting);
  // Reads the pulled rows of a part, and finishes the part. If reading fails, only this part's call is refused. The
  // caller may be handling the push of another worker.
  void answer(const Waiting& waiting);

  const std::shared_ptr<const Mode> mode_;  // null: pushes are applied and pulls are answered at once
  const Context shard_;

 private:
  void take(Waiting& pull);
};

std::unique_ptr<RowSequencer> make_rows_at_once(std::shared_ptr<const Mode> mode, const RowSequencer::Context& shard);
std::unique_ptr<RowSequencer> make_rows_in_rounds(std::shared_ptr<const Mode> mode, const RowSequencer::Context& shard);
// Makes the RowSequencer that the mode needs.
std::unique_ptr<RowSequencer> make_row_sequencer(std::shared_ptr<const Mode> mode, const RowSequencer::Context& shard);

}  // namespace paceline
