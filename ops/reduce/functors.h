#pragma once
// The mathematics of reductions, for host and device: a start value, a way to combine, and a last step.

#include <paceline/dtype.h>

#include <cstdint>
#include <limits>
#include <type_traits>

namespace paceline::functors {

// The type in which elements of type T are reduced.
template <class T>
using reduction_t = std::conditional_t<std::is_integral_v<T>, std::int64_t, accumulator_t<T>>;

struct Sum {
  template <class A>
  HOST_DEVICE static A start() {
    return A(0);
  }
  template <class A>
  HOST_DEVICE static A combine(A a, A b) {
    return a + b;
  }
  template <class A>
  HOST_DEVICE static A finish(A a, std::int64_t) {
    return a;
  }
};

struct Mean : Sum {
  template <class A>
  HOST_DEVICE static A finish(A a, std::int64_t count) {
    return a / static_cast<A>(count);
  }
};

struct Max {
  template <class A>
  HOST_DEVICE static A start() {
    if constexpr (std::is_integral_v<A>)
      return std::numeric_limits<A>::lowest();
    else
      return -std::numeric_limits<A>::infinity();
  }
  template <class A>
  HOST_DEVICE static A combine(A a, A b) {
    return b > a || b != b ? b : a;
  }
  template <class A>
  HOST_DEVICE static A finish(A a, std::int64_t) {
    return a;
  }
};

struct Min {
  template <class A>
  HOST_DEVICE static A start() {
    if constexpr (std::is_integral_v<A>)
      return std::numeric_limits<A>::max();
    else
      return std::numeric_limits<A>::infinity();
  }
  template <class A>
  HOST_DEVICE static A combine(A a, A b) {
    return b < a || b != b ? b : a;
  }
  template <class A>
  HOST_DEVICE static A finish(A a, std::int64_t) {
    return a;
  }
};

}  // namespace paceline::functors
