#pragma once
// Worker rules run at a worker. They change gradients before the push, and weights after the pull. The momentum of DANA
// and the prediction of weights are such rules.

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
  std::int64_t begin = 0, end = 0;  // in row-major order
  std::uint64_t version = 0;        // version of the weights
};

// A rule with a state for each key. One thread at a time calls prepare(), state() and load(). Calls of pulled() may run
// at the same time.
class WorkerRule {
 public:
  virtual ~WorkerRule() = default;

  // Returns the array to push for `key`, computed from its gradient. Both have the parameter's shape. Returns at once,
  // because engine tasks do the work. The result may be `gradient` itself, or an array that the rule owns. `weight` is
  // the worker's copy. `dana` applies weight decay, rescaling and clipping before the momentum. One worker with `dana`
  // therefore gets the same weights as with the optimizer `nesterov`.
  virtual NDArray prepare(const std::string& key, const NDArray& gradient, const NDArray& weight) = 0;

  // True: the store must call pulled() after pulls.
  virtual bool predicts() const { return false; }
  // Replaces the weights of a key, right after they were pulled, with the weights to compute from. `pushes` is the
  // number of this worker's pushes of the key since the last call. An engine task calls pulled() after the pull. The
  // weights are contiguous and in host memory. Calls for one key come one at a time, and calls for different keys may
  // run in parallel.
  virtual void pulled(const std::string&, std::span<const PulledRun>, std::int64_t /*pushes*/, const NDArray&) {}

  // Save and load the state, as arrays "<key>/<slot>", for checkpoints. check() throws InvalidArgument for an unknown
  // name, and load() throws what check() would throw.
  virtual NamedArrays state() const = 0;
  virtual void check(const NamedArrays& state) const = 0;
  virtual void load(const NamedArrays& state) = 0;
};

// Makes the worker's half of a staleness policy; null if no part of the policy has one. Throws InvalidArgument for
// wrong options, or if the optimizer has no momentum that `dana` could take over (adam).
//
// - `dana` (DANA-Slim, Hakimi et al. 2019) keeps the optimizer's momentum here: v = momentum * v + g. It pushes g +
//   momentum * v, and the server runs plain SGD.
// - `predict` replaces pulled weights by a prediction of the weights at the time when the gradient is applied. It moves
//   the pulled weights along a moving average of the updates between pulls. The average keeps the share
//   predict_smoothing (0.5) of its earlier value. The distance is the mean delay d that this worker has measured.
//   predict_steps=n says that the weights are used in the n-th step after the pull. The distance is then
//   n * (d + 1) - 1. For policies at the server, the pulled weights are still those that the server sent.
std::unique_ptr<WorkerRule> make_worker_rule(const Spec& optimizer, const std::string& policy,
                                             const Options& options = {});

}  // namespace paceline
