#pragma once
// What each contribution to a round is multiplied by, and what their sum is divided by.

#include <paceline/aggregate.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

namespace paceline {

class RoundFactors {
 public:
  RoundFactors() = default;
  // `examples` of each contribution. One division at the end rounds less than a share for each contribution does:
  // where the counts are alike, the mean is the sum of the gradients, divided once. Contributions without examples
  // count alike.
  RoundFactors(std::span<const std::int64_t> examples, Aggregate aggregate) : factors_(examples.size(), 1) {
    if (aggregate == Aggregate::kSum) return;
    const bool alike = std::ranges::adjacent_find(examples, std::ranges::not_equal_to()) == examples.end();
    if (!alike) factors_.assign(examples.begin(), examples.end());
    divisor_ = std::accumulate(factors_.begin(), factors_.end(), 0.0);
    // To divide by a power of two is exact, and costs nothing within the factors.
    if (!std::has_single_bit(static_cast<std::uint64_t>(divisor_))) return;
    for (double& factor : factors_) factor /= divisor_;
    divisor_ = 1;
  }

  double operator[](std::size_t contribution) const { return factors_[contribution]; }
  template <class T>
  void divide(T* sum, std::int64_t count) const {
    if (divisor_ == 1) return;
    const T divisor = static_cast<T>(divisor_);
    for (std::int64_t i = 0; i < count; ++i) sum[i] /= divisor;
  }

 private:
  std::vector<double> factors_;
  double divisor_ = 1;
};

}  // namespace paceline
