#pragma once
// The state of a worker that runs the optimizer itself, in mode dist_local. It travels in checkpoints as the state of a
// worker's rule.

#include <paceline/updater.h>
#include <paceline/worker_rule.h>

#include <functional>
#include <utility>

namespace paceline {

// The name of a worker's array with the counters of a key: examples of the job, and updates of the optimizer.
inline constexpr const char* kCounters = ":counters";

inline NDArray pack(const SliceCounters& counters) {
  return NDArray::from<double>(
      {static_cast<double>(counters.examples), static_cast<double>(counters.optimizer_updates)}, Shape{2});
}

struct SavedStore;

// Divides the state of a checkpoint among the workers, because in this mode they run the optimizers. Worker w gets the
// mean of the states of the former workers w, w + workers and so on. If there are no such workers, it gets the state of
// another former worker.
void divide_among_workers(SavedStore& store, int workers);

// Saves and loads the optimizer's state at the worker, for checkpoints. Leaves gradients as they are.
class LocalState final : public WorkerRule {
 public:
  LocalState(std::function<NamedArrays()> save, std::function<void(const NamedArrays&)> check)
      : save_(std::move(save)), check_(std::move(check)) {}
  NDArray prepare(const std::string&, const NDArray& gradient, const NDArray&) override { return gradient; }
  NamedArrays state() const override { return save_(); }
  void check(const NamedArrays& state) const override { check_(state); }
  void load(const NamedArrays& state) override {
    check(state);
    loaded_ = state;
  }
  // What the last load() has brought, once.
  NamedArrays take_loaded() { return std::exchange(loaded_, {}); }

 private:
  const std::function<NamedArrays()> save_;
  const std::function<void(const NamedArrays&)> check_;
  NamedArrays loaded_;
};

}  // namespace paceline
