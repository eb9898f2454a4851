// Gap-Aware (Barkai et al. 2020): divides each element of the gradient by 1 + |weight - pulled| / C. C is the typical
// movement of the weight in one update. C is a product of three factors: the largest learning rate of the schedule, the
// gain of the optimizer's StepSize, and the root of a bias-corrected average of squared gradients. The root is left out
// if the StepSize is normalised. With dana, the gradient is the update that the worker pushes. Weight decay in the
// gradient is divided, too.
#include <paceline/staleness.h>

#include <cmath>

#include "integer_power.h"

namespace paceline {
namespace {

class GapAware final : public Staleness {
 public:
  explicit GapAware(const Options& options) : decay_(options.get("gap_decay", 0.999)) {
    require(decay_ >= 0 && decay_ < 1, "gap_decay is ", decay_, ", expected a number in [0, 1)");
  }
  std::vector<std::string> state_names() const override { return {"mean_square"}; }
  bool needs_pulled() const override { return true; }
  void correct(const Tile<float>& tile, const StaleContext& context) const override { run(tile, context); }
  void correct(const Tile<double>& tile, const StaleContext& context) const override { run(tile, context); }

 private:
  template <class T>
  void run(const Tile<T>& tile, const StaleContext& context) const {
    const T decay = static_cast<T>(decay_);
    T* mean_square = tile.state[0];
    for (std::int64_t i = 0; i < tile.count; ++i)
      mean_square[i] = decay * mean_square[i] + (1 - decay) * tile.gradient[i] * tile.gradient[i];

    // The division begins with the first late gradient. The gradients from the initial weights arrive together, and
    // undivided they would do the most harm. The average is usable from the start, because it contains this gradient
    // and is bias-corrected.
    if (context.delay == 0 || !tile.pulled) return;
    const double correction = 1 - integer_power(decay_, context.count + 1);
    const T scale = static_cast<T>(context.peak_rate * context.step_size.gain);
    const T unbias = static_cast<T>(1 / correction);
    const T floor = static_cast<T>(1e-8);
    for (std::int64_t i = 0; i < tile.count; ++i) {
      const T typical = context.step_size.normalised ? scale : scale * std::sqrt(mean_square[i] * unbias);
      tile.gradient[i] /= 1 + std::abs(tile.weight[i] - tile.pulled[i]) / (typical + floor);
    }
  }

  double decay_;
};

}  // namespace

std::unique_ptr<Staleness> make_gap_aware_staleness(const Options& options) {
  return std::make_unique<GapAware>(options);
}

}  // namespace paceline
