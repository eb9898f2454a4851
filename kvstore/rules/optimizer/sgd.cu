#include "optimizer/on_cuda.cuh"
#include "optimizer/sgd_rules.h"

namespace paceline {

std::unique_ptr<Optimizer> sgd_optimizer_on_cuda(std::unique_ptr<Optimizer> host) {
  return std::make_unique<TileOnCuda<SgdRule>>(std::move(host));
}

}  // namespace paceline
