#pragma once
// The entries of a partition's log: everything that changes a partition of dense keys or of a table. Any process that
// applies the same entries in order, to the same initial values, gets the same bits. Entries hold decisions, which the
// server makes from clocks and the roster.
//
// Pointers in an entry are valid while the entry is applied. A partition that keeps the data also keeps the entry's
// `owner`.

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

// An entry's place in the log of its partition. `term` is not used yet. It will grow when another server takes over the
// partition.
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

// What happens to the gradients of a push.
enum class Verdict : std::uint8_t {
  kApplied,  // at once
  kKept,     // kept until the round is closed
  kLate,     // refused, because it came too late for its round
};

// Gradients of one worker for slices of the partition.
struct PushEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint64_t sequence = 0;  // counts the worker's pushes to this partition
  std::uint64_t step = 0;      // the worker's step
  std::uint64_t lease = 0;     // not used yet: the lease of the data that the gradients come from; 0: none
  // The gradients as received. Each names its slice by the number of the slice in the partition. apply() resolves the
  // scalars of each gradient that it applies.
  std::span<SliceContribution> gradients;
  // What happens to each gradient, and the round that it is kept for. If `rounds` is empty, all gradients are applied.
  struct InRound {
    Verdict verdict = Verdict::kKept;
    std::uint64_t round = 0;
    std::uint64_t next_round = 0;  // the slice's next round: all earlier rounds are over
  };
  std::span<const InRound> rounds;
  std::shared_ptr<const void> owner;  // keeps the gradients and their codecs alive
  std::uint64_t refused = 0;          // set by apply(): gradients that the policy refused
};

// A worker reads weights, and computes its next gradients from them.
struct ReadEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint64_t request = 0;  // a repeated request gets the same weights if the policy needs pulled weights
  struct Slice {
    std::uint32_t slice = 0;
    std::shared_ptr<const Codec> codec = nullptr;  // null: the weights are read as they are
    std::uint64_t version = 0;                     // set by apply()
  };
  std::span<Slice> slices;
};

// All rounds of a slice before `next_round` are over, even those without contributions.
struct SkipEntry {
  EntryPlace place;
  std::uint32_t slice = 0;
  std::uint64_t next_round = 0;
};

// A slice's oldest round is closed: the mean or the sum of its gradients is applied. If the round has an agreement
// (two_rounds.h), the workers' answers are the gradients.
struct CloseEntry {
  EntryPlace place;
  std::uint32_t slice = 0;
  std::uint64_t round = 0;
  Aggregate aggregate = Aggregate::kMean;
  ResolvedScalars scalars = {};  // resolved by apply()
};

// The proposals of a slice's oldest round are complete. The partition computes from them what the workers agree on.
struct AgreeEntry {
  EntryPlace place;
  std::uint32_t slice = 0;
  std::uint64_t round = 0;
};

// A worker's answer to an agreement.
struct AnswerEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint32_t slice = 0;
  std::uint64_t round = 0;
  std::span<const std::byte> bytes;
};

// A worker takes back its proposal, or will not answer.
struct AbstainEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint32_t slice = 0;
  std::uint64_t round = 0;
};

// The rules for later entries. If a policy needs pulled weights, a partition of dense keys remembers the present
// weights for each worker that has pulled them before this entry.
struct RulesEntry {
  EntryPlace place;
  Spec optimizer;
  std::string staleness;
  Options staleness_options;
  Spec table_optimizer = {};  // optimizer of tables; without a name: the same as `optimizer`
};

struct RateEntry {
  EntryPlace place;
  double learning_rate = 0;
};

// The number of live workers has changed.
struct WorkersEntry {
  EntryPlace place;
  int live = 1;
};

// A worker is lost or has left. The partition forgets the weights that the worker has pulled. The worker's running
// statistics, also those in open rounds, count only while no other worker has any.
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

// Gradients of one worker for rows of a table's partition, or a part of them if one message cannot hold all.
struct RowPushEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint64_t sequence = 0;  // counts the worker's pushes to this partition
  std::uint64_t step = 0;      // the worker's step, and the round of rows that are kept
  std::uint64_t lease = 0;     // as in PushEntry
  std::uint64_t call = 0;      // counts the worker's calls; all parts of a call have the same number
  RowGradients rows;           // as received
  std::size_t pieces = 0;      // number of parts in which the partition gets the rows of this call
  Verdict verdict = Verdict::kApplied;
  std::uint64_t next_round = 0;       // the partition's next round: all earlier rounds are over
  bool reads = false;                 // the worker also reads these rows, after the update
  std::shared_ptr<const void> owner;  // keeps the gradients alive
  RowScalars scalars = {};            // resolved by apply()
  std::uint64_t refused = 0;          // set by apply(): number of refused rows
};

// A worker reads rows, and computes its next gradients from them.
struct RowReadEntry {
  EntryPlace place;
  WorkerIncarnation from;
  std::uint64_t call = 0;  // a repeated call gets the same rows if the policy needs pulled weights
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

// Rows get their values, state and versions from a checkpoint. The first entry of a load empties the partition.
struct RowLoadEntry {
  EntryPlace place;
  std::uint64_t incarnation = 0;  // of the worker that loads
  std::uint64_t load = 0;         // counts this worker's loads; entries of an earlier load change nothing
  std::span<const std::int64_t> ids;
  const std::uint64_t* versions = nullptr;
  const std::vector<std::pair<std::string, const std::byte*>>* arrays = nullptr;
  std::int64_t examples = 0;
};

// Sees each entry after the partition has applied it. The scalars that the update has used are then resolved.
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
