#pragma once
// Powers with whole exponents. The function only multiplies, so every processor computes the same bits. std::pow does
// not promise this.

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
