#include "optimizer/adam_rule.h"
#include "optimizer/on_cuda.cuh"

namespace paceline {

std::unique_ptr<Optimizer> adam_optimizer_on_cuda(std::unique_ptr<Optimizer> host) {
  return std::make_unique<TileOnCuda<AdamRule>>(std::move(host));
}

}  // namespace paceline
