#pragma once
// Powers with whole exponents, by products alone: the same bits on every processor, which std::pow does not promise.

#include <cstdint>

namespace paceline {

// `exponent` is at least 0.
inline double integer_power(double base, std::int64_t exponent) {
  double power = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power *= base;
    base *= base;
  }
  return power;
}

}  // namespace paceline
