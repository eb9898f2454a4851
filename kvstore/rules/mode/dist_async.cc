// Each push is applied as it arrives, corrected for its delay. With a bound (stale-synchronous), a pull waits
// while its worker is more than `bound` steps ahead of the slowest. With two bounds, as in bound=2..6, a worker may
// always be 2 steps ahead, and never more than 6 (Zhao et al. 2019). In between, a server decides at each pull. The
// worker goes on if this shortens its later wait for the slowest worker.
#include <paceline/mode.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace paceline {
namespace {

constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kForesight = 1000;  // steps; predictions further ahead are useless

struct Bound {
  std::int64_t low, high;
};

Bound parse_bound(const std::string& text) {
  const auto number = [&text](const std::string& part) {
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    require(error == std::errc() && end == part.data() + part.size() && value >= 0, "bound is '", text,
            "', expected a whole number of steps from 0, or two as in 2..6");
    return value;
  };
  const std::size_t dots = text.find("..");
  const std::int64_t low = number(text.substr(0, dots));
  const std::int64_t high = dots == std::string::npos ? low : number(text.substr(dots + 2));
  require(low <= high, "bound is '", text, "', expected the smaller number first");
  return {low, high};
}

class DistAsync final : public Mode {
 public:
  explicit DistAsync(const Bound& bound) : bound_(bound) {}
  std::vector<std::string> keys() const override { return {"bound"}; }
  ModeTraits traits() const override { return {.holds_pulls = bound_.low < kUnbounded}; }
  bool may_pull(const Progress& progress) const override {
    const std::int64_t ahead = progress.mine - progress.slowest;
    if (ahead <= bound_.low) return true;
    return ahead <= bound_.high && shortest_wait_after(progress, std::min(bound_.high - ahead + 1, kForesight)) > 0;
  }
  std::string default_staleness(const std::string& optimizer) const override {
    return optimizer == "momentum" || optimizer == "nesterov" ? "dana+gap_aware" : "gap_aware";
  }

 private:
  // The number of further steps, at most `most`, after which the worker would wait shortest until the slowest worker
  // ends a step. 0 if the length of a step is not known yet.
  static std::int64_t shortest_wait_after(const Progress& progress, std::int64_t most) {
    if (progress.my_step <= 0 || progress.slowest_step <= 0) return 0;
    std::int64_t best = 0;
    double shortest = std::numeric_limits<double>::infinity();
    for (std::int64_t steps = 0; steps <= most; ++steps) {
      const double asks = progress.slowest_since + static_cast<double>(steps) * progress.my_step;
      const double ends = std::max(1.0, std::ceil(asks / progress.slowest_step)) * progress.slowest_step;
      if (ends - asks >= shortest) continue;
      shortest = ends - asks;
      best = steps;
    }
    return best;
  }

  const Bound bound_;
};

}  // namespace

std::unique_ptr<Mode> make_dist_async_mode(const Options& options) {
  return std::make_unique<DistAsync>(options.has("bound") ? parse_bound(options.get("bound", ""))
                                                          : Bound{kUnbounded, kUnbounded});
}

}  // namespace paceline
