#pragma once
// One line of a cumulative product and of its gradient, for host and device; elements lie `step` apart.

#include <paceline/detail/convert.h>
#include <paceline/detail/wrapping.h>
#include <paceline/host_device.h>

#include <cstdint>
#include <type_traits>

namespace paceline {

template <class T>
PACELINE_HOST_DEVICE void multiply_line(const T* x, T* y, std::int64_t size, std::int64_t step) {
  using A = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  A product = A(1);
  for (std::int64_t i = 0; i < size; ++i) {
    product = detail::wrapping_product(product, static_cast<A>(static_cast<accumulator_t<T>>(x[i * step])));
    y[i * step] = detail::convert<T>(product);
  }
}

// dx[i] is the sum over j >= i of gradient[j] times the product of x[0] to x[j] without x[i]. With p the product before
// i and s[i] = gradient[i] + x[i + 1] * s[i + 1], that is p * s[i]: no division, so zeros need no care.
template <class T>
PACELINE_HOST_DEVICE void multiply_line_gradient(const T* gradient, const T* x, T* dx, double* sums, std::int64_t size,
                                                 std::int64_t step) {
  double sum = 0;
  for (std::int64_t i = size - 1; i >= 0; --i) {
    const double next = i + 1 < size ? static_cast<double>(static_cast<accumulator_t<T>>(x[(i + 1) * step])) * sum : 0;
    sums[i * step] = sum = static_cast<double>(static_cast<accumulator_t<T>>(gradient[i * step])) + next;
  }
  double before = 1;
  for (std::int64_t i = 0; i < size; ++i) {
    dx[i * step] = detail::convert<T>(before * sums[i * step]);
    before *= static_cast<double>(static_cast<accumulator_t<T>>(x[i * step]));
  }
}

}  // namespace paceline
