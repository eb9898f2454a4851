#pragma once
// A partition of dense keys as a state machine: weights, the state of their rules, which pushes were taken, rounds that
// are open, what workers pulled. apply() is the only way to change it. It has no clock and knows no roster, so a backup
// that applies the entries of a log (entry.h) has the bits of the partition that the log comes from.
//
// Not thread-safe: a partition belongs to one thread. Only figures() may be called from others.

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

// Where the weights of a ReadEntry go, slice by slice.
class WeightSink {
 public:
  virtual ~WeightSink() = default;
  // About so many bytes come in small slices.
  virtual void reserve(std::size_t bytes) = 0;
  // Memory that apply() fills before it returns.
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
    // Where a codec takes two rounds: of the oldest round, once all have proposed, until that of the next one.
    std::unique_ptr<Agreement> agreement;
    std::map<int, std::uint64_t> answered;  // by worker, the round after the last that its answer was applied in

    bool agrees_on(std::uint64_t round) const { return agreement && agreement->round() == round; }
  };
  struct Figures {
    std::vector<Histogram> delays;  // of all applied pushes, by worker
    std::int64_t refused = 0;       // by the policy
    std::size_t pulled_bytes = 0;   // memory that remembered weights take now
    void add(const Figures& other);
  };

  // `policy`: the user's own, instead of those that rules name; may be null. Throws InvalidArgument for a dtype that
  // the store does not update.
  DensePartition(std::uint32_t id, std::span<const std::pair<SliceInfo, const void*>> slices,
                 std::shared_ptr<const Staleness> policy = nullptr);

  // Each throws, and changes nothing, where the entry does not fit the state: a slice or a round that is not there.
  // What an update throws is thrown on; the push counts as taken and the round as over all the same.
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

  // Was that push taken before? Throws InvalidArgument where no such push can come.
  bool is_taken(const WorkerIncarnation& from, std::uint64_t sequence) const;
  // The round after the last that the worker pushed the slice in, in that incarnation or a later one, of those near
  // `reference`; 0: in none.
  std::uint64_t contributed(const WorkerIncarnation& from, std::size_t slice, std::uint64_t reference) const;
  // Null: no round of the slice is open, and no agreement is kept.
  const SliceRounds* find_rounds(std::size_t slice) const;
  // The slice's next round, of those near `reference`; `far` where it is not near.
  std::uint64_t next_round(std::size_t slice, std::uint64_t reference, std::uint64_t far) const;
  std::vector<std::uint32_t> open_slices() const;

  // Thread-safe.
  Figures figures() const;
  // A number of all of the state: partitions that have applied the same entries have the same.
  std::uint64_t digest() const;

  // Sees what is applied from now on; null: nobody does. Must outlive the partition.
  void set_observer(EntryObserver* observer) { observer_ = observer; }

 private:
  // What a worker was answered last, in one word for a slice.
  struct Answered {
    static constexpr std::uint64_t kVersions = (std::uint64_t{1} << 24) - 1;  // the bits kept of a version
    static constexpr std::uint64_t kRequests = (std::uint64_t{1} << 40) - 1;  // and of a request's number
    std::uint64_t request : 40 = 0;
    std::uint64_t version : 24 = 0;

    bool is_of(std::uint64_t number) const { return request == (number & kRequests); }
    // Was it for a later request than that?
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
    // By slice, the round after the last that it pushed in (see round_near()); empty where it has pushed in none.
    std::vector<std::uint32_t> contributed;

    void set_codec(std::size_t slice, std::shared_ptr<const Codec> codec) {
      if (codec && codecs.empty()) codecs.resize(answered.size());
      if (!codecs.empty()) codecs[slice] = std::move(codec);
    }
  };

  template <class Entry>
  void log(Entry& entry);
  // What is known of the worker, in its latest incarnation.
  Worker& worker_of(const WorkerIncarnation& from);
  void keep(const PushEntry& entry, std::size_t number, Worker& worker);
  SliceRounds& open(std::size_t slice, std::uint64_t next_round);
  SliceRounds& rounds_of(std::size_t slice, std::uint64_t round);
  // Keeps no more than a number of a slice without open rounds.
  void rest(std::size_t slice);
  void set_next_round(std::size_t slice, std::uint64_t round);
  void remember_pulled();

  const std::uint32_t id_;
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
