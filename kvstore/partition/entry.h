#pragma once
// The entries of a partition's log: everything that changes a partition, of dense keys or of a table. Applied in their
// order to a partition made of the same initial values, by any process, they give the same bits. They say what was
// decided; who decides, by clocks and the roster, is the server.
//
// Pointers in an entry are valid while it is applied; what a partition keeps, it keeps with `owner`.

#include <paceline/updater.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rows/row_table.h"

namespace paceline {

// An entry's place in its partition's log. Terms are counted by changes of the partition's primary (none yet).
struct EntryPlace {
  std::uint32_t partition = 0;
  std::uint64_t term = 0;
  std::uint64_t lsn = 0;  // counts entries from 1
};

// A worker in one of its incarnations.
struct WorkerIncarnation {
  int worker = 0;
  std::uint64_t incarnation = 0;
};

// What becomes of the gradients of a push.
enum class Verdict : std::uint8_t {
  kApplied,  // at once
  kKept,     // until the round is closed
  kLate,     // refused: the round is closed
};

// Gradients of one worker for slices of the partition.
struct PushEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint64_t sequence = 0;  // counts the worker's pushes to this partition
  std::uint64_t step = 0;      // of the worker
  std::uint64_t lease = 0;     // of the data that the gradients come from; 0: none
  // As received; `slice` is its number in the partition. apply() resolves the scalars of those that it applies.
  std::span<SliceContribution> gradients;
  // Of each gradient, and the round that it is kept for; empty: all are applied.
  struct InRound {
    Verdict verdict = Verdict::kKept;
    std::uint64_t round = 0;
    std::uint64_t next_round = 0;  // of the slice: all before it are over
  };
  std::span<const InRound> rounds;
  std::shared_ptr<const void> owner;  // keeps the gradients and their codecs alive
  std::uint64_t refused = 0;          // set by apply(): gradients that the policy refused
};

// Weights that a worker computes from next.
struct ReadEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint64_t request = 0;  // a repeated request gets the same weights where that matters
  struct Slice {
    std::uint32_t slice = 0;
    std::shared_ptr<const Codec> codec = nullptr;  // null: the weights are read as they are
    std::uint64_t version = 0;                     // set by apply()
  };
  std::span<Slice> slices;
};

// All rounds of a slice before `next_round` are over, whoever contributed to them.
struct SkipEntry {
  EntryPlace place;
  std::uint32_t slice = 0;
  std::uint64_t next_round = 0;
};

// The mean or the sum of what is kept for a slice's oldest round is applied. Where the codec takes two rounds, of the
// answers.
struct CloseEntry {
  EntryPlace place;
  std::uint32_t slice = 0;
  std::uint64_t round = 0;
  Aggregate aggregate = Aggregate::kMean;
  ResolvedScalars scalars = {};  // resolved by apply()
};

// The proposals of a slice's oldest round become what its workers agree on.
struct AgreeEntry {
  EntryPlace place;
  std::uint32_t slice = 0;
  std::uint64_t round = 0;
};

// A worker's answer to what was agreed on.
struct AnswerEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint32_t slice = 0;
  std::uint64_t round = 0;
  std::span<const std::byte> bytes;
};

// A worker takes back what it proposed, or will not answer.
struct AbstainEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint32_t slice = 0;
  std::uint64_t round = 0;
};

// The rules from here on. Weights that workers pulled before count as pulled under these.
struct RulesEntry {
  EntryPlace place;
  Spec optimizer;
  std::string staleness;
  Options staleness_options;
  Spec table_optimizer = {};  // of tables; without a name: the same
};

struct RateEntry {
  EntryPlace place;
  double learning_rate = 0;
};

// So many workers are live.
struct WorkersEntry {
  EntryPlace place;
  int live = 1;
};

// A worker is lost: what it pulled, and what it said of running statistics, is forgotten.
struct LostEntry {
  EntryPlace place;
  int worker = 0;
};

// A slice gets weights, state and counters of a checkpoint.
struct LoadEntry {
  EntryPlace place;
  std::uint32_t slice = 0;
  const NamedArrays* state = nullptr;
  SliceCounters counters;
};

// Gradients of one worker for rows of a table's partition; part of them where one message cannot hold all.
struct RowPushEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint64_t sequence = 0;  // counts the worker's pushes to this partition
  std::uint64_t step = 0;      // of the worker; the round that the rows are kept for
  std::uint64_t lease = 0;     // of the data that the gradients come from; 0: none
  std::uint64_t call = 0;      // counts the worker's calls; all parts of one have the same
  RowGradients rows;           // as received
  std::size_t pieces = 0;      // in which the partition gets the rows of this call
  Verdict verdict = Verdict::kApplied;
  std::uint64_t next_round = 0;       // of the partition: all before it are over
  bool reads = false;                 // the worker gets the same rows after the update
  std::shared_ptr<const void> owner;  // keeps the gradients alive
  RowScalars scalars = {};            // resolved by apply()
  std::uint64_t refused = 0;          // set by apply(): rows that the policy refused
};

// Rows that a worker computes from next.
struct RowReadEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint64_t call = 0;  // the same call gets the same rows again where that matters
  std::span<const std::int64_t> ids;
};

struct RowSkipEntry {
  EntryPlace place;
  std::uint64_t next_round = 0;
};

struct RowCloseEntry {
  EntryPlace place;
  std::uint64_t round = 0;
  Aggregate aggregate = Aggregate::kMean;
  RowScalars scalars = {};  // resolved by apply()
};

// Rows get values, state and versions of a checkpoint. The first entry of a load empties the partition.
struct RowLoadEntry {
  EntryPlace place;
  std::uint64_t incarnation = 0;  // of the worker that loads
  std::uint64_t load = 0;         // counts its loads; entries of an earlier one change nothing
  std::span<const std::int64_t> ids;
  const std::uint64_t* versions = nullptr;
  const std::vector<std::pair<std::string, const std::byte*>>* arrays = nullptr;
  std::int64_t examples = 0;
};

// Sees every entry after it was applied, its scalars resolved.
class EntryObserver {
 public:
  virtual ~EntryObserver() = default;
  virtual void on(const PushEntry& entry) = 0;
  virtual void on(const ReadEntry& entry) = 0;
  virtual void on(const SkipEntry& entry) = 0;
  virtual void on(const CloseEntry& entry) = 0;
  virtual void on(const AgreeEntry& entry) = 0;
  virtual void on(const AnswerEntry& entry) = 0;
  virtual void on(const AbstainEntry& entry) = 0;
  virtual void on(const RulesEntry& entry) = 0;
  virtual void on(const RateEntry& entry) = 0;
  virtual void on(const WorkersEntry& entry) = 0;
  virtual void on(const LostEntry& entry) = 0;
  virtual void on(const LoadEntry& entry) = 0;
  virtual void on(const RowPushEntry& entry) = 0;
  virtual void on(const RowReadEntry& entry) = 0;
  virtual void on(const RowSkipEntry& entry) = 0;
  virtual void on(const RowCloseEntry& entry) = 0;
  virtual void on(const RowLoadEntry& entry) = 0;
};

}  // namespace paceline
