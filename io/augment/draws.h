#pragma once
// Random numbers of distributions that augmentation draws from.

#include <paceline/augment.h>

#include <cmath>
#include <numbers>

#include "permutation.h"

namespace paceline::io {

// In [0, 1), a multiple of 2^-53.
inline double uniform(Random& random) { return static_cast<double>(random.next() >> 11) * 0x1p-53; }
inline double uniform(Random& random, augment::Interval interval) {
  return interval.low + (interval.high - interval.low) * uniform(random);
}
// The logarithm is uniform.
inline double log_uniform(Random& random, augment::Interval interval) {
  return std::exp(uniform(random, {std::log(interval.low), std::log(interval.high)}));
}
inline bool happens(Random& random, double probability) { return uniform(random) < probability; }
// In [0, count].
inline int up_to(Random& random, int count) {
  return static_cast<int>(random.below(static_cast<std::uint64_t>(count) + 1));
}

// Mean 0, deviation 1 (Box and Muller).
inline double normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(1 - uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * uniform(random));
}

// The logarithm of a Gamma(shape, 1) number (Marsaglia and Tsang). The logarithm, as for a small shape the numbers are
// too small for a double.
inline double log_gamma_number(Random& random, double shape) {
  if (shape < 1) return log_gamma_number(random, shape + 1) + std::log(1 - uniform(random)) / shape;
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - uniform(random)) < x * x / 2 + d - d * v + d * std::log(v)) return std::log(d * v);
  }
}

// Beta(alpha, alpha).
inline double beta(Random& random, double alpha) {
  const double a = log_gamma_number(random, alpha), b = log_gamma_number(random, alpha);
  return 1 / (1 + std::exp(b - a));
}

}  // namespace paceline::io
