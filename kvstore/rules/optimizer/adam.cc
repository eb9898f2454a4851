#include "optimizer/adam_rule.h"

namespace paceline {

std::unique_ptr<Optimizer> make_adam_optimizer(const Options& options) {
  return std::make_unique<AdamOptimizer>(options);
}

}  // namespace paceline
