// Gradients by central differences, the oracle of every gradient rule.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace paceline::test {

// d (sum of weights * f(x)) / d x[i] at each of the positions. Results are subtracted one by one, because the
// difference of two long sums would be lost in their rounding.
template <class Function>
std::vector<double> numeric_gradient(const Function& f, std::vector<double> x, const std::vector<double>& weights,
                                     const std::vector<std::size_t>& positions) {
  std::vector<double> result;
  for (const std::size_t i : positions) {
    const double middle = x[i];
    const double step = 1e-5 * std::fmax(1, std::fabs(middle));
    x[i] = middle + step;
    const std::vector<double> above = f(x);
    x[i] = middle - step;
    const std::vector<double> below = f(x);
    x[i] = middle;
    double total = 0;
    for (std::size_t j = 0; j < weights.size(); ++j) total += weights[j] * (above[j] - below[j]);
    result.push_back(total / (2 * step));
  }
  return result;
}

}  // namespace paceline::test
