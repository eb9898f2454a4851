#include "optimizer/on_cuda.cuh"
#include "optimizer/sgd_rules.h"

namespace paceline {

std::unique_ptr<Optimizer> momentum_optimizer_on_cuda(std::unique_ptr<Optimizer> host) {
  return std::make_unique<TileOnCuda<MomentumRule<false>>>(std::move(host));
}

}  // namespace paceline
