#pragma once
// A slice of weights in an Updater, and the passes that change it.

#include <paceline/updater.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "slice_mutex.h"
#include "weights.h"

namespace paceline {

struct Rules {
  std::shared_ptr<const Optimizer> optimizer;
  std::shared_ptr<const Staleness> staleness;
  Preparation preparation;
  LearningRate rate;
  Multipliers multipliers;
  std::vector<KeyFactors> factors;  // by slice; empty where there are no multipliers
  StepSize step_size;
  bool needs_pulled = false;
  std::vector<std::string> state_names;  // the optimizer's, then the policy's
  std::size_t optimizer_states = 0;

  // Sets the members that follow from the optimizer and the policy: step_size, needs_pulled, state_names and
  // optimizer_states.
  void complete();
};

// The state of optimizer and policy for one slice: an array for each of Rules::state_names, as large as the weights.
class SliceStates {
 public:
  static constexpr std::size_t kMost = 64;

  bool has(std::size_t number) const { return (present_ >> number & 1) != 0; }
  bool has_all(std::size_t begin, std::size_t end) const {
    while (begin < end && has(begin)) ++begin;
    return begin == end;
  }
  // Returns array `number`, which must exist. Every array has `bytes` bytes.
  std::byte* at(std::size_t number, std::size_t bytes) const { return memory_.get() + number * padded(bytes); }
  // Returns an array, and adds it with zeros if it does not exist. `count`: how many arrays the slice may have.
  std::byte* add(std::size_t number, std::size_t bytes, std::size_t count) {
    if (!memory_) memory_.reset(new std::byte[count * padded(bytes)]());
    present_ |= std::uint64_t{1} << number;
    return at(number, bytes);
  }

 private:
  static std::size_t padded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

  std::unique_ptr<std::byte[]> memory_;
  std::uint64_t present_ = 0;
};

// At most one cache line, because there may be millions of slices.
struct Slice {
  // Members that few slices need.
  struct Rare {
    std::vector<Snapshot> latest;  // encoded weights of one version, for each requested codec
    // Kind kAverage: the last value of each worker. The value of a worker that is gone is at kGone, and counts only
    // while no other worker has a value.
    static constexpr int kGone = -1;
    std::map<int, std::vector<std::byte>> averaged;
    // The versions at which the optimizer's state and the policy's began.
    std::uint64_t optimizer_began = 0, policy_began = 0;
  };
  // Members that only some slices need, for instance slices whose rules keep state.
  struct Extra {
    SliceStates states;
    std::vector<std::pair<int, Snapshot>> pulled;  // what each worker pulled last, if the policy needs it
    std::unique_ptr<Rare> rare;
  };

  mutable SliceMutex mutex;
  const std::uint32_t name;  // offset of the key's name in the Updater's names
  const std::int64_t begin;
  const std::int64_t end : 56, type : 7, average : 1;
  Weights weight PACELINE_GUARDED_BY(mutex);
  std::uint64_t version PACELINE_GUARDED_BY(mutex) = 0;
  std::int64_t examples PACELINE_GUARDED_BY(mutex) = 0;
  std::unique_ptr<Extra> extra PACELINE_GUARDED_BY(mutex);

  Slice(const SliceInfo& info, std::uint32_t name_begin, Slab& slab)
      : name(name_begin),
        begin(info.begin),
        end(info.end),
        type(static_cast<std::int64_t>(info.dtype)),
        average(info.kind == SliceInfo::Kind::kAverage),
        weight(slab, bytes()) {}
  DType dtype() const { return static_cast<DType>(type); }
  bool is_average() const { return average != 0; }
  std::int64_t count() const { return end - begin; }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype()); }
  // Prefetches small weights.
  void prefetch_weight() const PACELINE_NO_THREAD_SAFETY_ANALYSIS { weight.prefetch(bytes()); }

  Extra& extras() PACELINE_REQUIRES(mutex) {
    if (!extra) extra = std::make_unique<Extra>();
    return *extra;
  }
  Rare& rare() PACELINE_REQUIRES(mutex) {
    Extra& holder = extras();
    if (!holder.rare) holder.rare = std::make_unique<Rare>();
    return *holder.rare;
  }
  const Rare* known_rare() const PACELINE_REQUIRES(mutex) { return extra ? extra->rare.get() : nullptr; }
  void forget_encoded() PACELINE_REQUIRES(mutex) {
    if (known_rare()) rare().latest.clear();
  }
  SliceCounters counters() const PACELINE_REQUIRES(mutex) {
    SliceCounters all{version, examples, 0, 0};
    if (is_average()) return all;
    const Rare* const began = known_rare();
    all.optimizer_updates = static_cast<std::int64_t>(version - (began ? began->optimizer_began : 0));
    all.policy_updates = static_cast<std::int64_t>(version - (began ? began->policy_began : 0));
    return all;
  }
  void set_counters(const SliceCounters& counters) PACELINE_REQUIRES(mutex) {
    version = counters.version;
    examples = counters.examples;
    if (is_average()) return;
    const std::uint64_t optimizer_began = version - static_cast<std::uint64_t>(counters.optimizer_updates);
    const std::uint64_t policy_began = version - static_cast<std::uint64_t>(counters.policy_updates);
    if (!known_rare() && optimizer_began == 0 && policy_began == 0) return;
    rare().optimizer_began = optimizer_began;
    rare().policy_began = policy_began;
  }
};

// The rules and numbers that an update of a slice uses.
struct SliceRules {
  const Rules& rules;
  const StaleContext& context;
  double decay_factor = 1;  // as in UpdateStep
};

// Corrects the contribution by the staleness policy, and updates the slice. `pulled` holds the weights that the
// contribution was computed from, or no data if they are not known. Copies the new weights to `copy` unless that is
// null.
void update(Slice& slice, const SliceRules& rules, const Contribution& contribution, const Snapshot& pulled, void* copy)
    PACELINE_REQUIRES(slice.mutex);
// Updates the slice by the mean, the sum or the majority vote of the contributions.
void update_by_round(Slice& slice, const SliceRules& rules, const std::vector<Contribution>& contributions,
                     Aggregate aggregate, const RoundCopies& copies) PACELINE_REQUIRES(slice.mutex);
// Writes to `out` the gradient that update_by_round() would apply: `count` elements of float32 or float64.
void add_up_round(const std::vector<Contribution>& contributions, Aggregate aggregate, std::int64_t count, DType dtype,
                  void* out);
// Takes new values of workers for a slice of kind kAverage. The weights of the slice become the mean of the last values
// of all workers. A contribution of a worker below 0 counts only if no other worker has a value.
void average(Slice& slice, std::span<const Contribution> contributions) PACELINE_REQUIRES(slice.mutex);
// Returns the encoded weights. Encodes them once for each version and codec.
Snapshot encoded_weights(Slice& slice, const std::shared_ptr<const Codec>& codec) PACELINE_REQUIRES(slice.mutex);

}  // namespace paceline
