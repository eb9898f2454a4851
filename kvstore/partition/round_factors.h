#pragma once
// The factor of each contribution to a round, and the divisor of their sum.

#include <paceline/aggregate.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <iterator>

namespace paceline {

class RoundFactors {
 public:
  // `examples` returns the number of examples of a contribution. For the mean, the sum is divided once, at the end,
  // because a division for each contribution would round more. If all contributions have equally many examples, even
  // 0, they count alike: the mean is the sum of the gradients, divided by the number of contributions.
  template <class Contributions, class Examples>
  RoundFactors(const Contributions& contributions, Aggregate aggregate, Examples examples) {
    alike_ = aggregate == Aggregate::kSum ||
             std::ranges::adjacent_find(contributions, std::ranges::not_equal_to(), examples) == contributions.end();
    if (aggregate == Aggregate::kSum) return;
    std::int64_t total = std::ssize(contributions);
    if (!alike_) {
      total = 0;
      for (const auto& contribution : contributions) total += std::invoke(examples, contribution);
    }
    // Division by a power of two is exact. The factors include it at no cost.
    (std::has_single_bit(static_cast<std::uint64_t>(total)) ? factor_ : divisor_) = static_cast<double>(total);
    factor_ = 1 / factor_;
  }

  // The factor of a contribution with this number of examples.
  double of(std::int64_t examples) const { return alike_ ? factor_ : static_cast<double>(examples) * factor_; }
  template <class T>
  void divide(T* sum, std::int64_t count) const {
    if (divisor_ == 1) return;
    const T divisor = static_cast<T>(divisor_);
    for (std::int64_t i = 0; i < count; ++i) sum[i] /= divisor;
  }

 private:
  bool alike_ = true;
  double factor_ = 1, divisor_ = 1;
};

}  // namespace paceline
