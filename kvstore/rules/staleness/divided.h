#pragma once
// The base of policies that divide the gradient of a whole slice by one number.

#include <paceline/staleness.h>

namespace paceline {

// `Policy` is the derived class. Its divisor(context) is 1 if nothing is to be corrected.
template <class Policy>
class Divided : public Staleness {
 public:
  void correct(const Tile<float>& tile, const StaleContext& context) const override { run(tile, context); }
  void correct(const Tile<double>& tile, const StaleContext& context) const override { run(tile, context); }

 private:
  template <class T>
  void run(const Tile<T>& tile, const StaleContext& context) const {
    const double divisor = context.delay == 0 ? 1 : static_cast<const Policy&>(*this).divisor(context);
    if (divisor == 1) return;
    for (std::int64_t i = 0; i < tile.count; ++i) tile.gradient[i] /= static_cast<T>(divisor);
  }
};

}  // namespace paceline
