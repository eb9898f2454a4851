#pragma once
// Adam with bias correction (Kingma & Ba 2015) as a function of one element. The function returns the value that is
// subtracted from the weight.

#include <paceline/host_device.h>

#include <cmath>

#include "integer_power.h"
#include "optimizer/tile_optimizer.h"

namespace paceline {

struct AdamRule {
  static constexpr int kSlots = 2;
  double beta1, beta2, epsilon;
  // The rate contains both bias corrections, so that the function of one element computes no powers.
  double rate(const UpdateStep& step) const {
    return step.learning_rate * std::sqrt(1 - integer_power(beta2, step.count)) /
           (1 - integer_power(beta1, step.count));
  }
  template <class T>
  struct Bound {
    T beta1, beta2, rest1, rest2, epsilon;
    PACELINE_HOST_DEVICE T operator()(T gradient, T* slots, T rate) const {
      slots[0] = beta1 * slots[0] + rest1 * gradient;
      slots[1] = beta2 * slots[1] + rest2 * gradient * gradient;
      return rate * slots[0] / (std::sqrt(slots[1]) + epsilon);
    }
  };
  template <class T>
  Bound<T> bind() const {
    // 1 - beta is computed in double. In float, 1 - 0.999 has a relative error of 1.3e-5.
    return {static_cast<T>(beta1), static_cast<T>(beta2), static_cast<T>(1 - beta1), static_cast<T>(1 - beta2),
            static_cast<T>(epsilon)};
  }
};

class AdamOptimizer : public TileOptimizer<AdamRule> {
 public:
  explicit AdamOptimizer(const Options& options)
      : TileOptimizer({options.get("beta1", 0.9), options.get("beta2", 0.999), options.get("epsilon", 1e-8)},
                      {"mean", "variance"}) {
    require(rule_.beta1 >= 0 && rule_.beta1 < 1 && rule_.beta2 >= 0 && rule_.beta2 < 1, "beta1 and beta2 are ",
            rule_.beta1, " and ", rule_.beta2, ", expected numbers in [0, 1)");
    require(rule_.epsilon > 0, "epsilon is ", rule_.epsilon, ", expected a number above 0");
  }
  StepSize step_size() const override { return {.gain = 1, .normalised = true}; }
};

// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
class AdamW final : public AdamOptimizer {
 public:
  explicit AdamW(const Options& options) : AdamOptimizer(options), weight_decay_(options.get("weight_decay", 0.01)) {
    require(weight_decay_ >= 0, "weight_decay is ", weight_decay_, ", expected at least 0");
  }
  void update(const Tile<float>& tile, const UpdateStep& step) const override { decay_and_update(tile, step); }
  void update(const Tile<double>& tile, const UpdateStep& step) const override { decay_and_update(tile, step); }
  bool decays_weights() const override { return true; }
  bool in_one_pass() const override { return false; }  // the decay changes the weight first
  // The factor by which weight decay multiplies a weight before Adam's step.
  double kept(const UpdateStep& step) const { return 1 - step.learning_rate * (weight_decay_ * step.decay_factor); }

 private:
  template <class T>
  void decay_and_update(const Tile<T>& tile, const UpdateStep& step) const {
    const T factor = static_cast<T>(kept(step));
    for (std::int64_t i = 0; i < tile.count; ++i) tile.weight[i] *= factor;
    AdamOptimizer::update(tile, step);
  }

  double weight_decay_;
};

}  // namespace paceline
