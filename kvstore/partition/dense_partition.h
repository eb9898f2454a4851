#pragma once
// A partition of dense keys as a state machine. Its state is the weights, the state of their rules, the accepted
// pushes, the open rounds, and what workers have pulled. Only apply() changes the state. apply() reads no clock and no
// roster. A replica that applies the entries of the log (entry.h) therefore has the same bits.
//
// Not thread-safe: a partition belongs to one thread. Other threads may only call id(), slices() and figures().

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
  // A hint: the calls of room() will need about `bytes` bytes in all.
  virtual void reserve(std::size_t bytes) = 0;
  // Returns memory that apply() fills before it returns.
  virtual std::byte* room(std::size_t bytes) = 0;
  virtual void add(const Snapshot& weights) = 0;
};

class DensePartition {
 public:
  // Raw weights of fewer bytes are copied to WeightSink::room(). WeightSink::add() gets all other weights as snapshots,
  // and also small weights that the partition has remembered for a repeated request.
  static constexpr std::size_t kSharedBytes = 32 << 10;

  struct Slice {
    static constexpr std::size_t kMostBytes = (std::size_t{1} << 30) - 1;
    std::uint32_t bytes : 30;
    std::uint32_t average : 1;
    std::uint32_t encodable : 1;  // float32 and not averaged: weights and gradients may travel encoded
  };
  // A gradient that is kept until its round is closed.
  struct Kept {
    std::uint64_t incarnation = 0;  // of the worker that pushed it
    Contribution contribution;
    std::shared_ptr<const void> owner;  // keeps the gradient's bytes alive
  };
  struct SliceRounds : OpenRounds<Kept> {
    // The agreement of the oldest round, if the codec has two rounds of messages (two_rounds.h). An AgreeEntry makes
    // the agreement. It is kept until the next AgreeEntry, even after its round is closed.
    std::unique_ptr<Agreement> agreement;
    std::map<int, std::uint64_t> answered;  // by worker: one more than the last round that applied the worker's answer

    bool agrees_on(std::uint64_t round) const { return agreement && agreement->round() == round; }
  };
  struct Figures {
    std::vector<Histogram> delays;  // of all applied pushes, by worker
    std::int64_t refused = 0;       // gradients that the policy refused
    std::size_t pulled_bytes = 0;   // present memory of the pulled weights that are remembered
    void add(const Figures& other);
  };

  // `own`: objects of the user's program that rules may name, besides the policies of the library. Throws
  // InvalidArgument for a dtype that the store does not update.
  DensePartition(std::uint32_t id, std::span<const std::pair<SliceInfo, const void*>> slices, Extensions own = {});

  // apply() throws if the entry does not fit the state, for instance if there is no such slice or round. The state is
  // then unchanged. An AbstainEntry that does not fit changes nothing, and does not throw. If an update fails, apply()
  // throws the error of the update. The push then still counts as taken, and the round as over.
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

  // Was this push taken before? Throws InvalidArgument for an earlier incarnation, or for a sequence number that no
  // worker can have reached.
  bool is_taken(const WorkerIncarnation& from, std::uint64_t sequence) const;
  // One more than the last step in which the worker pushed the slice for a round, in this incarnation or a later one.
  // 0: no such step is known. round_near() recovers the number from 32 bits, with `reference`.
  std::uint64_t contributed(const WorkerIncarnation& from, std::size_t slice, std::uint64_t reference) const;
  // The open rounds of a slice. Null if no round is open and no agreement is kept.
  const SliceRounds* find_rounds(std::size_t slice) const;
  // The slice's next round: all earlier rounds are over. If find_rounds() returns null, only 32 bits of the number are
  // kept. round_near() recovers the number from `reference`, or returns `far`.
  std::uint64_t next_round(std::size_t slice, std::uint64_t reference, std::uint64_t far) const;
  std::vector<std::uint32_t> open_slices() const;

  // Thread-safe.
  Figures figures() const;
  // A hash of the state. Partitions that have applied the same entries have the same hash.
  std::uint64_t digest() const;

  // Sets the observer of later entries, or none if null. The observer must outlive the partition.
  void set_observer(EntryObserver* observer) { observer_ = observer; }

 private:
  // What the partition last answered to a worker's pull of a slice, in one 64-bit word.
  struct Answered {
    static constexpr std::uint64_t kVersions = (std::uint64_t{1} << 24) - 1;  // mask: kept bits of a version
    static constexpr std::uint64_t kRequests = (std::uint64_t{1} << 40) - 1;  // mask: kept bits of a request's number
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
    std::vector<std::shared_ptr<const Codec>> codecs;  // by slice: of the last answer; empty: no answer was encoded
    // By slice: the low bits of one more than the last step in which the worker pushed the slice for a round (see
    // round_near()). Empty if there was no such step.
    std::vector<std::uint32_t> contributed;
    std::uint64_t lost = 0;  // the last incarnation that was lost or has left; 0: none

    void set_codec(std::size_t slice, std::shared_ptr<const Codec> codec) {
      if (codec && codecs.empty()) codecs.resize(answered.size());
      if (!codecs.empty()) codecs[slice] = std::move(codec);
    }
  };

  template <class Entry>
  void log(Entry& entry);
  // Returns the state of the worker's latest incarnation. If `from` is later, the state begins anew.
  Worker& worker_of(const WorkerIncarnation& from);
  void keep(const PushEntry& entry, std::size_t number, Worker& worker);
  SliceRounds& open(std::size_t slice, std::uint64_t next_round);
  SliceRounds& rounds_of(std::size_t slice, std::uint64_t round);
  // If the slice has neither open rounds nor an agreement, keeps only the number of its next round.
  void rest(std::size_t slice);
  void set_next_round(std::size_t slice, std::uint64_t round);
  void remember_pulled();

  const std::uint32_t id_;
  const std::shared_ptr<const Extensions> own_;  // null: none
  const std::unique_ptr<Updater> updater_ = make_updater();
  std::vector<Slice> slices_;
  std::map<int, Worker> workers_;
  std::unordered_map<std::uint32_t, SliceRounds> open_;  // by slice
  // By slice: the low bits of the next round of a slice that is not in `open_`. Empty if no slice has had a round.
  std::vector<std::uint32_t> next_round_;
  std::uint64_t lsn_ = 0;
  std::vector<SliceRead> reads_;          // scratch
  std::vector<std::size_t> read_places_;  // scratch
  EntryObserver* observer_ = nullptr;
};

}  // namespace paceline
