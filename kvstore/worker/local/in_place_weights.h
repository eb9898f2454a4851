#pragma once
// Weights of modes `local` and `device` that are updated in place. They are on an accelerator, with the optimizer's
// state, or in an array that the caller shares with the store. One launch updates all weights of a call. There is no
// staleness policy, because in one process no gradient is late.

#include <paceline/backend.h>
#include <paceline/updater.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/saved_state.h"

namespace paceline {

// One key. The variable of its weights orders all use of the key. The counters are those after the last push, even if
// that has not run yet.
struct InPlaceKey {
  std::string name;
  bool average = false;
  NDArray weight;
  std::vector<NDArray> state;  // by the optimizer's state_names()
  SliceCounters counters;
  KeyFactors factors;
};

// Calls take turns.
class InPlaceWeights {
 public:
  InPlaceWeights();
  ~InPlaceWeights();

  static bool takes(const InitValue& value);
  std::unique_ptr<InPlaceKey> add(const InitValue& value) const;

  // State whose name changes begins with zeros. Throws InvalidArgument, and then changes nothing.
  void set_optimizer(const Spec& optimizer, std::span<InPlaceKey* const> keys);
  void set_learning_rate(double rate);

  struct Push {
    InPlaceKey* key;
    NDArray gradient;  // on the weights' device, contiguous
  };
  // Task on each device.
  void push(std::span<const Push> pushes, std::int64_t examples, int priority);
  std::int64_t updates() const { return updates_; }

  SavedKey save(const InPlaceKey& key) const;
  void load(InPlaceKey& key, const SavedKey& saved) const;

 private:
  struct Rules;

  std::vector<NDArray> zeros_for(const NDArray& weight) const;

  std::shared_ptr<const Rules> rules_;
  std::int64_t updates_ = 0;
};

}  // namespace paceline
