// Plain stochastic gradient descent.
#include "optimizer/sgd_rules.h"
#include "optimizer/tile_optimizer.h"

namespace paceline {
namespace {

class Sgd final : public TileOptimizer<SgdRule> {
 public:
  Sgd() : TileOptimizer({}, {}) {}
  double worker_momentum() const override { return 0; }
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd_optimizer(const Options&) { return std::make_unique<Sgd>(); }

}  // namespace paceline
