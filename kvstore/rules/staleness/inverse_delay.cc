// Divides a late gradient by (delay + offset)^power, but never by less than 1. Very old gradients thus hardly move the
// weights. The default divides by the delay (Zhang et al. 2016). offset=1 divides by delay + 1, and power=0.5 by the
// square root of the delay.
#include <algorithm>
#include <cmath>

#include "staleness/divided.h"

namespace paceline {
namespace {

class InverseDelay final : public Divided<InverseDelay> {
 public:
  InverseDelay(double power, double offset) : power_(power), offset_(offset) {}
  double factor(const StaleContext& context) const override {
    return std::pow(std::max(1.0, static_cast<double>(context.delay) + offset_), power_);
  }
  double divisor(const StaleContext& context) const { return context.factor; }

 private:
  const double power_, offset_;
};

}  // namespace

std::unique_ptr<Staleness> make_inverse_delay_staleness(const Options& options) {
  const double power = options.get("power", 1.0), offset = options.get("offset", 0.0);
  require(power >= 0 && offset >= 0, "inverse_delay needs power >= 0 and offset >= 0");
  return std::make_unique<InverseDelay>(power, offset);
}

}  // namespace paceline
