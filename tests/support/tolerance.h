// How far computed numbers may lie from true ones.
#pragma once

#include <paceline/dtype.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace paceline::test {

// Relative to the largest number of the array: a few roundings of the type, for sums of up to some hundred terms.
inline double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 1e-13;
    case DType::kFloat32: return 3e-6;
    case DType::kFloat16: return 5e-3;
    case DType::kBfloat16: return 4e-2;
    default: return 0;
  }
}

// Are all numbers within `tolerance` times the largest finite expected one (at least `floor`)? NaN and infinities must
// be equal.
inline ::testing::AssertionResult all_near(const std::vector<double>& actual, const std::vector<double>& expected,
                                           double tolerance, double floor = 0) {
  if (actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " numbers, expected " << expected.size();
  double scale = floor;
  for (const double value : expected)
    if (std::isfinite(value)) scale = std::max(scale, std::fabs(value));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double a = actual[i], e = expected[i];
    if (std::isnan(a) && std::isnan(e)) continue;
    if (a == e || std::fabs(a - e) <= tolerance * scale) continue;
    return ::testing::AssertionFailure() << "at " << i << ": " << a << ", expected " << e << " within "
                                         << tolerance * scale;
  }
  return ::testing::AssertionSuccess();
}

// Of all numbers together, to the size of `a`.
template <class Real>
double relative_difference(const std::vector<Real>& a, const std::vector<Real>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace paceline::test
