#pragma once
// Weights of modes `local` and `device` that are updated in place. They are on an accelerator, with the optimizer's
// state, or in an array that the caller shares with the store. On an accelerator, one task applies all gradients of a
// call. There is no staleness policy, because in one process no gradient is late.

#include <paceline/backend.h>
#include <paceline/updater.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/saved_state.h"

namespace paceline {

// One key. Every task that uses the key names the variable of `weight`, so the engine orders these tasks. The tasks
// that update the weights also count, so an update that fails does not count. Read the counts only when no task runs.
struct InPlaceKey {
  std::string name;
  bool average = false;
  NDArray weight;
  std::vector<NDArray> state;  // in the order of the optimizer's state_names()
  SliceCounters counters;
  std::int64_t updates = 0;  // by this store; load() leaves it alone
  KeyFactors factors;
};

// Not thread-safe.
class InPlaceWeights {
 public:
  struct Rules;

  InPlaceWeights();
  ~InPlaceWeights();

  // Can the weights of this key be updated in place?
  static bool takes(const InitValue& value);
  std::unique_ptr<InPlaceKey> add(const InitValue& value) const;

  // If the names of the state change, all state begins with zeros. Throws InvalidArgument for a spec that
  // make_optimizer() refuses, and then changes nothing.
  void set_optimizer(const Spec& optimizer, std::span<InPlaceKey* const> keys);
  void set_learning_rate(double rate);

  struct Push {
    InPlaceKey* key;
    NDArray gradient;  // on the weights' device, contiguous
  };
  // Tasks: one for the gradients of each accelerator, and one for each key on the CPU. Each key of running statistics
  // (`average`) has a task of its own.
  void push(std::span<const Push> pushes, std::int64_t examples, int priority);

  SavedKey save(const InPlaceKey& key) const;
  // `saved` fits the key and the optimizer.
  void load(InPlaceKey& key, const SavedKey& saved) const;

 private:
  std::vector<NDArray> zeros_for(const NDArray& weight) const;

  std::shared_ptr<const Rules> rules_;
};

}  // namespace paceline
