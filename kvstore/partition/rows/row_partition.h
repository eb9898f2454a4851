#pragma once
// A partition of a row-sparse table as a state machine, as DensePartition is for slices of dense keys. Its state is the
// rows, the state of their rules, the accepted pushes, the open rounds, and what workers have pulled. It belongs to one
// thread. Other threads may only call figures().

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "entry.h"
#include "open_rounds.h"
#include "rows/row_table.h"
#include "rows/table_layout.h"
#include "sequence_window.h"

namespace paceline {

class RowPartition {
 public:
  // A worker's contribution to a round, in pieces, because one message may not hold all of its rows.
  struct Kept {
    struct Piece {
      RowGradients rows;
      std::shared_ptr<const void> owner;  // of what `rows` points to
    };
    std::uint64_t incarnation = 0;  // of its worker
    std::vector<Piece> pieces;
    std::size_t expected = 0;
    bool complete() const { return pieces.size() >= expected; }
  };

  // `own`: what rules may name besides the library's policies.
  RowPartition(const TableSpec& spec, const TableLayout& layout, std::uint32_t number, Extensions own = {});

  // `answer`: receives the rows that an entry reads; null: nothing does, as in a backup. Rows must ascend and belong to
  // the partition. Each throws, and changes nothing, if the entry does not fit the state. If the update itself throws,
  // apply() passes the error on. The push then counts as taken, and the round as over.
  void apply(RowPushEntry& entry, const RowAnswer* answer = nullptr);
  void apply(RowReadEntry& entry, const RowAnswer* answer = nullptr);
  void apply(RowSkipEntry& entry);
  void apply(RowCloseEntry& entry);
  void apply(RulesEntry& entry);
  void apply(RateEntry& entry);
  void apply(WorkersEntry& entry);
  void apply(LostEntry& entry);
  void apply(RowLoadEntry& entry);

  const TableSpec& spec() const { return table_.spec(); }
  std::uint32_t number() const { return number_; }
  const TableLayout& layout() const { return layout_; }
  std::size_t row_bytes() const { return table_.row_bytes(); }
  const OpenRounds<Kept>& rounds() const { return rounds_; }
  // Was that push taken before? Throws InvalidArgument for a sequence number that no worker can have reached.
  bool is_taken(const WorkerIncarnation& from, std::uint64_t sequence) const;
  // Throws InvalidArgument if the worker has already contributed to the round in another call.
  void expect_contribution(const WorkerIncarnation& from, std::uint64_t round, std::uint64_t call) const;
  SavedRowArrays save(std::int64_t begin, std::size_t bytes) const { return table_.save(begin, bytes); }
  // Thread-safe.
  RowFigures figures() const { return table_.figures(); }
  // As DensePartition::digest().
  std::uint64_t digest() const;
  // As DensePartition::set_observer().
  void set_observer(EntryObserver* observer) { observer_ = observer; }

 private:
  struct Worker {
    TakenPushes taken;
    std::uint64_t rounds = 0;  // one more than the last round in which it pushed
    std::uint64_t call = 0;    // the call that pushed in that round
  };

  template <class Entry>
  void log(Entry& entry);
  void keep(const RowPushEntry& entry, Worker& worker);
  void set_rules(std::shared_ptr<const RowRules> rules);

  RowTable table_;
  const TableLayout layout_;
  const std::uint32_t number_;
  const std::shared_ptr<const Extensions> own_;  // null: none
  std::shared_ptr<const RowRules> rules_;        // null: the table's first
  std::map<int, Worker> workers_;
  std::map<std::uint64_t, std::uint64_t> loads_;  // by incarnation: the last load that it began
  OpenRounds<Kept> rounds_;
  std::uint64_t lsn_ = 0;
  EntryObserver* observer_ = nullptr;
};

}  // namespace paceline
