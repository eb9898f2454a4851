#pragma once
// A partition of a row-sparse table as a state machine, as DensePartition is for dense keys. Its state is the rows, the
// state of their rules, the accepted pushes, the open rounds, and what workers have pulled. A partition belongs to one
// thread. Other threads may only call figures(), and read what never changes: spec(), number(), layout() and
// row_bytes().

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
      std::shared_ptr<const void> owner;  // keeps the memory of `rows` alive
    };
    std::uint64_t incarnation = 0;  // of the worker
    std::vector<Piece> pieces;
    std::size_t expected = 0;
    bool complete() const { return pieces.size() >= expected; }
  };

  // `own`: objects of the user's program that rules may name, besides the policies of the library.
  RowPartition(const TableSpec& spec, const TableLayout& layout, std::uint32_t number, Extensions own = {});

  // `answer` receives the rows that an entry reads. A replica passes null. Rows must ascend and belong to the
  // partition. apply() throws for a push of an earlier incarnation of the worker. It also throws for a RowCloseEntry
  // whose round is not the oldest open one, and for rules, rates or arrays that the table cannot use. In these cases
  // the state is unchanged. A RowLoadEntry of an earlier load changes nothing, and does not throw. If an update fails,
  // apply() throws the error of the update. The push then still counts as taken, and the round as over.
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
  // Was this push taken before? Throws InvalidArgument for an earlier incarnation, or for a sequence number that no
  // worker can have reached.
  bool is_taken(const WorkerIncarnation& from, std::uint64_t sequence) const;
  // Throws InvalidArgument if the worker has already contributed to this round in another call, or to a later round.
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
    std::uint64_t rounds = 0;  // one more than the last round in which the worker pushed
    std::uint64_t call = 0;    // the call that pushed in that round
  };

  template <class Entry>
  void log(Entry& entry);
  void keep(const RowPushEntry& entry, Worker& worker);
  void set_rules(std::shared_ptr<const RowRules> rules);

  RowTable table_;
  const TableLayout layout_;
  const std::uint32_t number_;
  const std::shared_ptr<const Extensions> own_;                  // null: none
  std::shared_ptr<const RowRules> rules_ = RowRules::initial();  // of the table
  std::map<int, Worker> workers_;
  std::map<std::uint64_t, std::uint64_t> loads_;  // by incarnation of a worker: the last load that this worker began
  OpenRounds<Kept> rounds_;
  std::uint64_t lsn_ = 0;
  EntryObserver* observer_ = nullptr;
};

}  // namespace paceline
