#include "optimizer/adam_rule.h"

namespace paceline {

std::unique_ptr<Optimizer> make_adamw_optimizer(const Options& options) { return std::make_unique<AdamW>(options); }

}  // namespace paceline
