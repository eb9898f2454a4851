// Uses the full learning rate for delays up to the number of workers. No order of the workers' steps can avoid such
// delays. Above this threshold the rate falls as 1 / delay (Mishchenko et al. 2022, Koloskova et al. 2022), so that a
// straggler does not limit the rate of the other workers. `full_rate_delay` sets another threshold.
#include "staleness/divided.h"

namespace paceline {
namespace {

class DelayAdaptive final : public Divided<DelayAdaptive> {
 public:
  explicit DelayAdaptive(std::int64_t full) : full_(full) {}
  double divisor(const StaleContext& context) const {
    const std::int64_t until = full_ > 0 ? full_ : context.workers;
    return context.delay <= until ? 1 : static_cast<double>(context.delay) / static_cast<double>(until);
  }

 private:
  const std::int64_t full_;
};

}  // namespace

std::unique_ptr<Staleness> make_delay_adaptive_staleness(const Options& options) {
  const std::int64_t full = options.get("full_rate_delay", std::int64_t{0});
  require(full >= 0, "full_rate_delay is ", full, ", expected at least 0 (the number of workers)");
  return std::make_unique<DelayAdaptive>(full);
}

}  // namespace paceline
