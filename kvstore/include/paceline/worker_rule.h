#pragma once
// What happens to a gradient at the worker before it is pushed and to weights after they were pulled, and keeps state
// there: DANA's momentum, prediction. Its state is checkpointed with the worker.

#include <paceline/ndarray.h>
#include <paceline/options.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace paceline {

// Elements [begin, end) of a key that were pulled at one version.
struct PulledRun {
  std::int64_t begin = 0, end = 0;
  std::uint64_t version = 0;
};

class WorkerRule {
 public:
  virtual ~WorkerRule() = default;

  // Makes what is pushed for `key` from its gradient; both have the parameter's shape. Runs as engine tasks: returns at
  // once; `update` may be `gradient` itself or an array that the rule owns. Weight decay, rescaling and clipping are
  // done first, in here, so that one worker with `dana` is exactly NAG. `weight` is the worker's copy.
  virtual NDArray prepare(const std::string& key, const NDArray& gradient, const NDArray& weight) = 0;

  // True: pulled() is to be called.
  virtual bool predicts() const { return false; }
  // Replaces weights that were just pulled by those to compute from; `pushes`: this worker's own of that key since the
  // last call. Inside the engine task that writes `weight` (contiguous, in host memory); one call at a time per key.
  virtual void pulled(const std::string&, std::span<const PulledRun>, std::int64_t /*pushes*/, const NDArray&) {}

  // State arrays as "<key>/<slot>", for checkpoints; load() ignores nothing: an unknown name throws InvalidArgument.
  virtual NamedArrays state() const = 0;
  virtual void load(const NamedArrays& state) = 0;
};

// The worker's half of a staleness policy, or nullptr where no part of it has one. `dana` (DANA-Slim, Hakimi et al.
// 2019) keeps the optimizer's momentum here: v = momentum * v + g; pushes g + momentum * v, and the server runs plain
// SGD. `predict` moves pulled weights on to where they are expected to be when the gradient is applied: by the delay
// that this worker has measured, along the mean update between its last pulls (predict_smoothing, 0.5, of it kept from
// those before). The server goes on comparing with the weights that it sent. A worker whose weights are used only in
// its n-th step after the pull says predict_steps=n. Throws InvalidArgument on wrong options, or if the optimizer has
// no momentum that could move (adam).
std::unique_ptr<WorkerRule> make_worker_rule(const Spec& optimizer, const std::string& policy,
                                             const Options& options = {});

}  // namespace paceline
