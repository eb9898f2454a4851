#pragma once
// What happens to a gradient at the worker before it is pushed, and keeps state there: DANA's momentum, later error
// feedback, DGC, elastic averaging, prediction. Its state is checkpointed with the worker.

#include <paceline/ndarray.h>
#include <paceline/options.h>

#include <memory>
#include <string>
#include <vector>

namespace paceline {

class WorkerRule {
 public:
  virtual ~WorkerRule() = default;

  // Makes what is pushed for `key` from its gradient; both have the parameter's shape. Runs as engine tasks: returns at
  // once; `update` may be `gradient` itself or an array that the rule owns. Weight decay, rescaling and clipping are
  // done first, in here, so that one worker with `dana` is exactly NAG. `weight` is the worker's copy.
  virtual NDArray prepare(const std::string& key, const NDArray& gradient, const NDArray& weight) = 0;

  // State arrays as "<key>/<slot>", for checkpoints; load() ignores nothing: an unknown name throws InvalidArgument.
  virtual NamedArrays state() const = 0;
  virtual void load(const NamedArrays& state) = 0;
};

// DANA-Slim (Hakimi et al. 2019): v = momentum * v + g; pushes g + momentum * v. The server runs plain SGD.
struct DanaOptions {
  double momentum = 0.9;
  double weight_decay = 0, rescale = 1, clip_gradient = 0;
};
std::unique_ptr<WorkerRule> make_dana_rule(const DanaOptions& options);

}  // namespace paceline
