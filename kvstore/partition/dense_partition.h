#pragma once
// A partition of dense keys as a state machine. Its state is the weights, the state of their rules, the accepted
// pushes, the open rounds, and what workers have pulled. Only apply() changes it. It reads no clock and no roster. A
// backup that applies the entries of the log (entry.h) therefore has the same bits.
//
// Not thread-safe: a partition belongs to one thread. Other threads may only call figures().

#include <paceline/updater.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "agreement.h"
#include "entry.h"
#include "open_rounds.h"
#include "sequence_window.h"

namespace paceline {

// Receives the weights of a ReadEntry, slice by slice.
class WeightSink {
 public:
  virtual ~WeightSink() = default;
  // A hint: small slices will need about that many bytes.
  virtual void reserve(std::size_t bytes) = 0;
  // Returns memory that apply() fills before it returns.
  virtual std::byte* room(std::size_t bytes) = 0;
  virtual void add(const Snapshot& weights) = 0;
};

class DensePartition {
 public:
  // Slices of fewer bytes are copied to WeightSink::room(), others are shared as snapshots.
  static constexpr std::size_t kSharedBytes = 32 << 10;

  struct Slice {
    static constexpr std::size_t kMostBytes = (std::size_t{1} << 30) - 1;
    std::uint32_t bytes : 30;
    std::uint32_t average : 1;
    std::uint32_t encodable : 1;  // float32 gradients: weights and gradients may travel encoded
  };
  // A gradient that waits for its round.
  struct Kept {
    std::uint64_t incarnation = 0;  // of its worker
    Contribution contribution;
    std::shared_ptr<const void> owner;  // of its bytes
  };
  struct SliceRounds : OpenRounds<Kept> {
    // For a codec with two rounds: the agreement of the oldest round, made when all workers have proposed. It is kept
    // until the next round's agreement.
    std::unique_ptr<Agreement> agreement;
    std::map<int, std::uint64_t> answered;  // by worker: one more than the last round that applied its answer

    bool agrees_on(std::uint64_t round) const { return agreement && agreement->round() == round; }
  };
  struct Figures {
    std::vector<Histogram> delays;  // of all applied pushes, by worker
    std::int64_t refused = 0;       // by the policy
    std::size_t pulled_bytes = 0;   // memory that remembered weights take now
    void add(const Figures& other);
  };

  // `own`: what rules may name besides the library's policies. Throws InvalidArgument for a dtype that the store does
  // not update.
  DensePartition(std::uint32_t id, std::span<const std::pair<SliceInfo, const void*>> slices, Extensions own = {});

  // Each throws, and changes nothing, if the entry does not fit the state, for instance if there is no such slice or
  // round. If the update itself throws, apply() passes the error on. The push then counts as taken, and the round as
  // over.
  void apply(PushEntry& entry);
  void apply(ReadEntry& entry, WeightSink* sink = nullptr);
  void apply(SkipEntry& entry);
  void apply(CloseEntry& entry);
  void apply(AgreeEntry& entry);
  void apply(AnswerEntry& entry);
  void apply(AbstainEntry& entry);
  void apply(RulesEntry& entry);
  void apply(RateEntry& entry);
  void apply(WorkersEntry& entry);
  void apply(LostEntry& entry);
  void apply(LoadEntry& entry);

  std::uint32_t id() const { return id_; }
  const std::vector<Slice>& slices() const { return slices_; }
  std::string key_of(std::size_t slice) const { return updater_->info(static_cast<int>(slice)).name; }
  SliceInfo info(std::size_t slice) const { return updater_->info(static_cast<int>(slice)); }
  std::uint64_t version(std::size_t slice) const { return updater_->version(static_cast<int>(slice)); }
  NamedArrays save(std::size_t slice, SliceCounters* counters) const {
    return updater_->save_slice(static_cast<int>(slice), counters);
  }

  // Was that push taken before? Throws InvalidArgument for a sequence number that no worker can have reached.
  bool is_taken(const WorkerIncarnation& from, std::uint64_t sequence) const;
  // One more than the last round in which the worker pushed the slice, in this incarnation or a later one; 0: none. The
  // round is the match nearest to `reference` (round_number.h).
  std::uint64_t contributed(const WorkerIncarnation& from, std::size_t slice, std::uint64_t reference) const;
  // The open rounds of a slice. Null if no round is open and no agreement is kept.
  const SliceRounds* find_rounds(std::size_t slice) const;
  // The slice's next round, as round_near() finds it from `reference`; `far` if that finds none.
  std::uint64_t next_round(std::size_t slice, std::uint64_t reference, std::uint64_t far) const;
  std::vector<std::uint32_t> open_slices() const;

  // Thread-safe.
  Figures figures() const;
  // A hash of the whole state. Partitions that have applied the same entries have the same hash.
  std::uint64_t digest() const;

  // Sets the observer of later entries; null: none. It must outlive the partition.
  void set_observer(EntryObserver* observer) { observer_ = observer; }

 private:
  // The last answer to a worker for a slice, in one word.
  struct Answered {
    static constexpr std::uint64_t kVersions = (std::uint64_t{1} << 24) - 1;  // bits that are kept of a version
    static constexpr std::uint64_t kRequests = (std::uint64_t{1} << 40) - 1;  // and of a request's number
    std::uint64_t request : 40 = 0;
    std::uint64_t version : 24 = 0;

    bool is_of(std::uint64_t number) const { return request == (number & kRequests); }
    // Was the answer for a later request than `number`?
    bool after(std::uint64_t number) const {
      const std::uint64_t ahead = (request - number) & kRequests;
      return request > 0 && ahead > 0 && ahead <= kRequests / 2;
    }
    bool has_version(std::uint64_t other) const { return version == (other & kVersions); }
    void set(std::uint64_t number, std::uint64_t of) {
      request = number & kRequests;
      version = of & kVersions;
    }
  };
  struct Worker {
    TakenPushes taken;
    std::vector<Answered> answered;                    // by slice
    std::vector<std::shared_ptr<const Codec>> codecs;  // by slice, of the answers; empty where none was encoded
    // By slice: one more than the last round in which the worker pushed (see round_near()). Empty if it has pushed in
    // none.
    std::vector<std::uint32_t> contributed;

    void set_codec(std::size_t slice, std::shared_ptr<const Codec> codec) {
      if (codec && codecs.empty()) codecs.resize(answered.size());
      if (!codecs.empty()) codecs[slice] = std::move(codec);
    }
  };

  template <class Entry>
  void log(Entry& entry);
  // The state of the worker's latest incarnation.
  Worker& worker_of(const WorkerIncarnation& from);
  void keep(const PushEntry& entry, std::size_t number, Worker& worker);
  SliceRounds& open(std::size_t slice, std::uint64_t next_round);
  SliceRounds& rounds_of(std::size_t slice, std::uint64_t round);
  // If the slice has no open rounds, keeps only the number of its next round.
  void rest(std::size_t slice);
  void set_next_round(std::size_t slice, std::uint64_t round);
  void remember_pulled();

  const std::uint32_t id_;
  const std::shared_ptr<const Extensions> own_;  // null: none
  const std::unique_ptr<Updater> updater_ = make_updater();
  std::vector<Slice> slices_;
  std::map<int, Worker> workers_;
  std::unordered_map<std::uint32_t, SliceRounds> open_;  // by slice
  // By slice, while it is not in `open_`: the low bits of its next round. Empty where no round was ever open.
  std::vector<std::uint32_t> next_round_;
  std::uint64_t lsn_ = 0;
  std::vector<SliceRead> reads_;          // scratch
  std::vector<std::size_t> read_places_;  // scratch
  EntryObserver* observer_ = nullptr;
};

}  // namespace paceline
