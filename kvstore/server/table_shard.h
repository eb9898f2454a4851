#pragma once
// The part of a shard that handles pushes and pulls of row-sparse tables. All functions except late() run on the
// shard's thread.

#include <atomic>
#include <memory>
#include <vector>

#include "row_sequencer.h"

namespace paceline {

class TableShard {
 public:
  // `clocks` and `gate` belong to the shard.
  TableShard(const WorkerClocks& clocks, PullGate& gate)
      : clocks_(clocks), gate_(gate), sequencer_(make_rows_at_once(nullptr, {clocks_, gate_, late_})) {}

  void set_mode(std::shared_ptr<const Mode> mode) {
    sequencer_ = make_row_sequencer(std::move(mode), {clocks_, gate_, late_});
  }
  void run(const std::shared_ptr<RowCall>& call, int part);
  // Throws Corrupt unless the row ids ascend and belong to the partition, and RowGradients::places index existing
  // gradients or sums.
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
    for (ServedRows* const served : partitions_) served->failed = {};
  }
  // Clocks or the roster have changed. Checks everything that waits.
  void reconsider() { sequencer_->reconsider(); }
  // The number of rows that came after their round was closed. Thread-safe.
  std::int64_t late() const { return late_; }

 private:
  const WorkerClocks& clocks_;
  PullGate& gate_;
  std::vector<ServedRows*> partitions_;
  std::atomic<std::int64_t> late_{0};
  std::unique_ptr<RowSequencer> sequencer_;
};

}  // namespace paceline
