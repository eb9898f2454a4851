// Delay-compensated ASGD (Zheng et al. 2017). Adds the first-order change of a gradient g since the pull, which is
// lambda * g * g * (weight - pulled). `lambda` is divided by sqrt(mean square of g) unless adaptive=0. The correction
// of each element is clipped to `clip` times |g| (0: no clipping). Without clipping, training with a large lambda can
// diverge.
//
// g * g approximates the curvature. Near an optimum, if g is the mean over B examples, g * g is only 1 / B of the
// curvature. The default of `lambda` therefore follows B. With adaptive=0 it is B. With adaptive=1 it is 2 for B up to
// 64, and 2 * sqrt(B / 32) above.
#include <paceline/staleness.h>

#include <algorithm>
#include <cmath>

namespace paceline {
namespace {

class DelayCompensated final : public Staleness {
 public:
  explicit DelayCompensated(const Options& options)
      : adaptive_(options.get("adaptive", true)),
        follows_examples_(!options.has("lambda")),
        lambda_(options.get("lambda", 0.0)),
        clip_(options.get("clip", 1.0)),
        decay_(options.get("decay", 0.95)) {
    require(lambda_ >= 0 && clip_ >= 0 && decay_ >= 0 && decay_ < 1,
            "delay_compensated needs lambda >= 0, clip >= 0 and decay in [0, 1)");
  }
  std::vector<std::string> state_names() const override {
    return adaptive_ ? std::vector<std::string>{"mean_square"} : std::vector<std::string>{};
  }
  bool needs_pulled() const override { return true; }
  void correct(const Tile<float>& tile, const StaleContext& context) const override { run(tile, context); }
  void correct(const Tile<double>& tile, const StaleContext& context) const override { run(tile, context); }

 private:
  template <class T>
  void run(const Tile<T>& tile, const StaleContext& context) const {
    const T decay = static_cast<T>(decay_);
    const T strength = static_cast<T>(follows_examples_ ? lambda_for(context.examples) : lambda_);
    if (adaptive_)
      for (std::int64_t i = 0; i < tile.count; ++i) {
        const T g = tile.gradient[i];
        tile.state[0][i] = decay * tile.state[0][i] + (1 - decay) * g * g;
      }
    if (context.delay == 0 || !tile.pulled) return;
    for (std::int64_t i = 0; i < tile.count; ++i) {
      const T g = tile.gradient[i];
      T lambda = strength;
      if (adaptive_) lambda /= std::sqrt(tile.state[0][i] + static_cast<T>(1e-7));
      T correction = lambda * g * g * (tile.weight[i] - tile.pulled[i]);
      if (clip_ > 0) {
        const T bound = static_cast<T>(clip_) * std::abs(g);
        correction = std::clamp(correction, -bound, bound);
      }
      tile.gradient[i] = g + correction;
    }
  }

  double lambda_for(std::int64_t examples) const {
    const double count = static_cast<double>(std::max<std::int64_t>(1, examples));
    if (!adaptive_) return count;
    return count <= 64 ? 2 : 2 * std::sqrt(count / 32);
  }

  bool adaptive_, follows_examples_;
  double lambda_, clip_, decay_;
};

}  // namespace

std::unique_ptr<Staleness> make_delay_compensated_staleness(const Options& options) {
  return std::make_unique<DelayCompensated>(options);
}

}  // namespace paceline
