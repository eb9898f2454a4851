// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
#include "optimizer/adam_rule.h"

namespace paceline {
namespace {

class AdamW final : public AdamOptimizer {
 public:
  explicit AdamW(const Options& options) : AdamOptimizer(options), weight_decay_(options.get("weight_decay", 0.01)) {
    require(weight_decay_ >= 0, "weight_decay is ", weight_decay_, ", expected at least 0");
  }
  void update(const Tile<float>& tile, const UpdateStep& step) const override { decay_and_update(tile, step); }
  void update(const Tile<double>& tile, const UpdateStep& step) const override { decay_and_update(tile, step); }
  bool decays_weights() const override { return true; }

 private:
  template <class T>
  void decay_and_update(const Tile<T>& tile, const UpdateStep& step) const {
    const T kept = static_cast<T>(1 - step.learning_rate * weight_decay_);
    for (std::int64_t i = 0; i < tile.count; ++i) tile.weight[i] *= kept;
    AdamOptimizer::update(tile, step);
  }

  double weight_decay_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw_optimizer(const Options& options) { return std::make_unique<AdamW>(options); }

}  // namespace paceline
