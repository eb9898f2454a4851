#pragma once
// The mathematics of reductions, for host and device: a first step on each element, a start value, a way to combine,
// and a last step.

#include <paceline/detail/wrapping.h>
#include <paceline/dtype.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace paceline::functors {

// The type in which elements of type T are reduced.
template <class T>
using reduction_t = std::conditional_t<std::is_integral_v<T>, std::int64_t, accumulator_t<T>>;

struct Fold {
  static constexpr bool kIntegers = true;
  // True: results of integers and bool are int64. False: results of integers have their type, and bool is not reduced.
  static constexpr bool kOfIntegersInInt64 = false;
  template <class A>
  PACELINE_HOST_DEVICE static A map(A a) {
    return a;
  }
  template <class A>
  PACELINE_HOST_DEVICE static A finish(A a, std::int64_t) {
    return a;
  }
};

struct Sum : Fold {
  static constexpr bool kOfIntegersInInt64 = true;
  template <class A>
  PACELINE_HOST_DEVICE static A start() {
    return A(0);
  }
  template <class A>
  PACELINE_HOST_DEVICE static A combine(A a, A b) {
    return detail::wrapping_sum(a, b);
  }
};

struct Mean : Sum {
  static constexpr bool kIntegers = false;
  template <class A>
  PACELINE_HOST_DEVICE static A finish(A a, std::int64_t count) {
    return a / static_cast<A>(count);
  }
};

struct Max : Fold {
  template <class A>
  PACELINE_HOST_DEVICE static A start() {
    if constexpr (std::is_integral_v<A>)
      return std::numeric_limits<A>::lowest();
    else
      return -std::numeric_limits<A>::infinity();
  }
  template <class A>
  PACELINE_HOST_DEVICE static A combine(A a, A b) {
    return b > a || b != b ? b : a;
  }
};

struct Min : Fold {
  template <class A>
  PACELINE_HOST_DEVICE static A start() {
    if constexpr (std::is_integral_v<A>)
      return std::numeric_limits<A>::max();
    else
      return std::numeric_limits<A>::infinity();
  }
  template <class A>
  PACELINE_HOST_DEVICE static A combine(A a, A b) {
    return b < a || b != b ? b : a;
  }
};

struct Prod : Fold {
  static constexpr bool kOfIntegersInInt64 = true;
  template <class A>
  PACELINE_HOST_DEVICE static A start() {
    return A(1);
  }
  template <class A>
  PACELINE_HOST_DEVICE static A combine(A a, A b) {
    return detail::wrapping_product(a, b);
  }
};

struct L1Norm : Sum {
  static constexpr bool kIntegers = false;
  template <class A>
  PACELINE_HOST_DEVICE static A map(A a) {
    return a < A(0) ? -a : a;
  }
};

struct L2Norm : Sum {
  static constexpr bool kIntegers = false;
  template <class A>
  PACELINE_HOST_DEVICE static A map(A a) {
    return a * a;
  }
  template <class A>
  PACELINE_HOST_DEVICE static A finish(A a, std::int64_t) {
    return std::sqrt(a);
  }
};

struct MaxNorm : Max {
  static constexpr bool kIntegers = false;
  template <class A>
  PACELINE_HOST_DEVICE static A start() {
    return A(0);
  }
  template <class A>
  PACELINE_HOST_DEVICE static A map(A a) {
    return a < A(0) ? -a : a;
  }
};

// Does Op reduce elements of type T?
template <class Op, class T>
inline constexpr bool kReduces =
    std::is_same_v<T, bool> ? Op::kIntegers&& Op::kOfIntegersInInt64 : Op::kIntegers || !std::is_integral_v<T>;

// The type of Op's results for elements of type T.
template <class Op, class T>
using result_t = std::conditional_t<Op::kOfIntegersInInt64 && std::is_integral_v<T>, std::int64_t, T>;

// The type in which pieces are joined. Each piece is reduced in reduction_t, which is faster. Joined in float64, a sum
// of millions of floating numbers loses few digits.
template <class T>
using total_t = std::conditional_t<std::is_floating_point_v<reduction_t<T>>, double, reduction_t<T>>;

}  // namespace paceline::functors
