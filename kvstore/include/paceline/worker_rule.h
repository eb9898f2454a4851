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

// The worker's half of a staleness policy, or nullptr where no part of it has one. `dana` (DANA-Slim, Hakimi et al.
// 2019) keeps the optimizer's momentum here: v = momentum * v + g; pushes g + momentum * v, and the server runs plain
// SGD. Throws InvalidArgument if the optimizer has no momentum that could move (adam).
std::unique_ptr<WorkerRule> make_worker_rule(const Spec& optimizer, const std::string& policy);

}  // namespace paceline
