#pragma once
// A slice of weights inside an Updater, and the passes over it that change it.

#include <paceline/updater.h>

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
  std::shared_ptr<const Staleness> named, staleness;  // the user's own may stand in for the named one
  Preparation preparation;
  LearningRate rate;
  StepSize step_size;
  bool needs_pulled = false;
  std::vector<std::string> state_names;  // the optimizer's, then the policy's
  std::size_t optimizer_states = 0;

  void use(const std::shared_ptr<const Staleness>& own);
};

// First what every update touches.
struct Slice {
  using Bytes = std::vector<std::byte>;
  // What few slices have.
  struct Remembered {
    std::vector<Snapshot> latest;     // encoded, of one version, one per codec that was asked for
    std::map<int, Snapshot> pulled;   // what each worker pulled last, where the policy needs it
    std::map<int, Bytes> averaged;    // kind kAverage: what each worker said last
  };

  mutable SliceMutex mutex;
  Weights weight GUARDED_BY(mutex);
  SliceCounters counters GUARDED_BY(mutex);
  std::vector<Bytes> state GUARDED_BY(mutex);  // by Rules::state_names; empty before the first update, as is what is missing
  std::unique_ptr<Remembered> remembered GUARDED_BY(mutex);
  const SliceInfo info;

  explicit Slice(SliceInfo of) : info(std::move(of)) {}
  bool is_average() const { return info.kind == SliceInfo::Kind::kAverage; }
  std::int64_t count() const { return info.end - info.begin; }
  // A hint, which may be out of date.
  void prefetch_weight(std::size_t bytes) const NO_THREAD_SAFETY_ANALYSIS { weight.prefetch(bytes); }
  bool has_state(std::size_t number) const REQUIRES(mutex) {
    return number < state.size() && state[number].size() == weight.size();
  }
  bool has_states(std::size_t begin, std::size_t end) const REQUIRES(mutex) {
    while (begin < end && has_state(begin)) ++begin;
    return begin == end;
  }
  Remembered& remember() REQUIRES(mutex) {
    if (!remembered) remembered = std::make_unique<Remembered>();
    return *remembered;
  }
};

// Corrects `contribution`, which was computed from `pulled` where that is known, and updates. Copies the new weights
// to `copy` unless that is null.
void update(Slice& slice, const Rules& rules, const Contribution& contribution, const Snapshot& pulled,
            const StaleContext& context, void* copy) REQUIRES(slice.mutex);
// Updates by the mean of contributions of `examples` in all.
void update_by_mean(Slice& slice, const Rules& rules, const std::vector<Contribution>& contributions,
                    std::int64_t examples, const StaleContext& context, const RoundCopies& copies)
    REQUIRES(slice.mutex);
// The mean alone, of `count` float32 elements: what update_by_mean() applies.
void mean_of_round(const std::vector<Contribution>& contributions, std::int64_t count, float* mean);
// The weight of an average slice is the mean of what the workers said last.
void average(Slice& slice, std::span<const Contribution> contributions) REQUIRES(slice.mutex);
// Encodes the weights, once per version.
Snapshot encoded_weights(Slice& slice, const std::shared_ptr<const Codec>& codec) REQUIRES(slice.mutex);

}  // namespace paceline
