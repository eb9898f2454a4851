#pragma once
// Worker rules: what happens at a worker to gradients before they are pushed, and to weights after they were pulled.
// DANA's momentum and prediction are such rules.

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
  std::uint64_t version = 0;        // of the weights
};

// A rule with a state for each key. Calls for different keys may come from different threads.
class WorkerRule {
 public:
  virtual ~WorkerRule() = default;

  // Makes what is pushed for `key` from its gradient; both have the parameter's shape. Pushes engine tasks and returns
  // at once. The result may be `gradient` itself, or an array that the rule owns. It does weight decay, rescaling and
  // clipping first, so that one worker with `dana` is exactly NAG. `weight` is the worker's copy.
  virtual NDArray prepare(const std::string& key, const NDArray& gradient, const NDArray& weight) = 0;

  // True: the rule wants calls of pulled().
  virtual bool predicts() const { return false; }
  // Replaces weights of a key that were just pulled by those to compute from. `pushes` is the number of this worker's
  // pushes of that key since the last call. It is called inside the engine task that writes the weights, which are
  // contiguous and in host memory; one call at a time for a key.
  virtual void pulled(const std::string&, std::span<const PulledRun>, std::int64_t /*pushes*/, const NDArray&) {}

  // The state, as arrays "<key>/<slot>" for checkpoints, and back. load() throws InvalidArgument for a name that it
  // does not know.
  virtual NamedArrays state() const = 0;
  virtual void load(const NamedArrays& state) = 0;
};

// The worker's half of a staleness policy, or nullptr where no part of the policy has one. Throws InvalidArgument on
// wrong options, and where the optimizer has no momentum that `dana` could take over (adam).
//
// - `dana` (DANA-Slim, Hakimi et al. 2019) keeps the optimizer's momentum here: v = momentum * v + g. It pushes
//   g + momentum * v, and the server runs plain SGD.
// - `predict` moves pulled weights to where they are expected to be when the gradient is applied: by the delay that
// this
//   worker has measured, along the mean update between its last pulls. The mean keeps predict_smoothing (0.5) of the
//   earlier ones. predict_steps=n says that the weights are used in the n-th step after the pull. The server still
//   compares with the weights that it sent.
std::unique_ptr<WorkerRule> make_worker_rule(const Spec& optimizer, const std::string& policy,
                                             const Options& options = {});

}  // namespace paceline
