// Divides a late gradient by (delay + offset)^power, never by less than 1, so that very old gradients hardly move the
// weights: 1 / delay (Zhang et al. 2016), with offset=1 the gentler 1 / (1 + delay), with power=0.5 its root.
#include <algorithm>
#include <cmath>

#include "staleness/delay_factor.h"

namespace paceline {
namespace {

struct InverseDelay {
  double power, offset;
  double operator()(const StaleContext& context) const {
    return std::pow(std::max(1.0, static_cast<double>(context.delay) + offset), power);
  }
};

}  // namespace

std::unique_ptr<Staleness> make_inverse_delay_staleness(const Options& options) {
  const InverseDelay rule{options.get("power", 1.0), options.get("offset", 0.0)};
  require(rule.power >= 0 && rule.offset >= 0, "inverse_delay needs power >= 0 and offset >= 0");
  return std::make_unique<DelayFactor<InverseDelay>>(rule);
}

}  // namespace paceline
