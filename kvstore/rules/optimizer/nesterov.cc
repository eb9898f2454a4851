// Nesterov momentum (Sutskever et al. 2013) in PyTorch's form: the momentum does not contain the learning rate.
#include <cmath>

#include "optimizer/sgd_rules.h"
#include "optimizer/tile_optimizer.h"

namespace paceline {
namespace {

class Nesterov final : public TileOptimizer<MomentumRule<true>> {
 public:
  explicit Nesterov(double momentum) : TileOptimizer({momentum}, {"momentum"}) {}
  double worker_momentum() const override { return rule_.momentum; }
  StepSize step_size() const override { return {.gain = 1 / std::sqrt(1 - rule_.momentum * rule_.momentum)}; }
};

}  // namespace

std::unique_ptr<Optimizer> make_nesterov_optimizer(const Options& options) {
  const double momentum = options.get("momentum", 0.9);
  require(momentum > -1 && momentum < 1, "momentum is ", momentum, ", expected a number between -1 and 1");
  return std::make_unique<Nesterov>(momentum);
}

}  // namespace paceline
