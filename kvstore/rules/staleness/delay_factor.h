#pragma once
// Makes a policy of a divisor that follows from the delay alone.

#include <paceline/staleness.h>

namespace paceline {

template <class Divisor>
class DelayFactor final : public Staleness {
 public:
  explicit DelayFactor(Divisor divisor) : divisor_(divisor) {}
  void correct(const Tile<float>& tile, const StaleContext& context) const override { run(tile, context); }
  void correct(const Tile<double>& tile, const StaleContext& context) const override { run(tile, context); }

 private:
  template <class T>
  void run(const Tile<T>& tile, const StaleContext& context) const {
    const double divisor = context.delay == 0 ? 1 : divisor_(context);
    if (divisor == 1) return;
    for (std::int64_t i = 0; i < tile.count; ++i) tile.gradient[i] /= static_cast<T>(divisor);
  }

  Divisor divisor_;
};

}  // namespace paceline
