#pragma once
// The mathematics of the unary family, for host and device. A functor maps an element; `derivative` gives the slope
// from what is saved, the argument or the result.

#include "shared/fast_math.h"

#include <cmath>
#include <type_traits>

namespace paceline::functors {

enum class Saved { kArgument, kResult };

struct Relu {
  static constexpr bool kIntegers = true;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x < T(0) ? T(0) : x;
  }
  template <class T>
  HOST_DEVICE static T derivative(T y) {
    return y > T(0) ? T(1) : T(0);
  }
};

struct Sigmoid {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return T(1) / (T(1) + fast_exp(-x));
  }
  template <class T>
  HOST_DEVICE static T derivative(T y) {
    return y * (T(1) - y);
  }
};

struct Tanh {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return fast_tanh(x);
  }
  template <class T>
  HOST_DEVICE static T derivative(T y) {
    return T(1) - y * y;
  }
};

struct Gelu {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  // erfc keeps the relative precision of the left tail, where 1 + erf cancels.
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x * T(0.5) * std::erfc(x * T(-0.70710678118654752440));
  }
  template <class T>
  HOST_DEVICE static T derivative(T x) {
    const T density = std::exp(T(-0.5) * x * x) * T(0.39894228040143267794);
    return T(0.5) * std::erfc(x * T(-0.70710678118654752440)) + x * density;
  }
};

struct Softplus {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return (x > T(0) ? x : T(0)) + std::log1p(std::exp(x > T(0) ? -x : x));
  }
  template <class T>
  HOST_DEVICE static T derivative(T x) {
    return T(1) / (T(1) + fast_exp(-x));
  }
};

struct Exp {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return fast_exp(x);
  }
  template <class T>
  HOST_DEVICE static T derivative(T y) {
    return y;
  }
};

struct Log {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return std::log(x);
  }
  template <class T>
  HOST_DEVICE static T derivative(T x) {
    return T(1) / x;
  }
};

struct Sqrt {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return std::sqrt(x);
  }
  template <class T>
  HOST_DEVICE static T derivative(T y) {
    return T(0.5) / y;
  }
};

struct Rsqrt {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return T(1) / std::sqrt(x);
  }
  template <class T>
  HOST_DEVICE static T derivative(T y) {
    return T(-0.5) * y * y * y;
  }
};

struct Square {
  static constexpr bool kIntegers = true;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return static_cast<T>(x * x);
  }
  template <class T>
  HOST_DEVICE static T derivative(T x) {
    return T(2) * x;
  }
};

struct Reciprocal {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return T(1) / x;
  }
  template <class T>
  HOST_DEVICE static T derivative(T y) {
    return -y * y;
  }
};

struct Abs {
  static constexpr bool kIntegers = true;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::fabs(x);
    else
      return static_cast<T>(x < T(0) ? -x : x);
  }
  template <class T>
  HOST_DEVICE static T derivative(T x) {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);
  }
};

struct Sign {
  static constexpr bool kIntegers = true;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;
  }
};

struct Negative {
  static constexpr bool kIntegers = true;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return static_cast<T>(-x);
  }
};

struct Sin {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return std::sin(x);
  }
  template <class T>
  HOST_DEVICE static T derivative(T x) {
    return std::cos(x);
  }
};

struct Cos {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  HOST_DEVICE T operator()(T x) const {
    return std::cos(x);
  }
  template <class T>
  HOST_DEVICE static T derivative(T x) {
    return -std::sin(x);
  }
};

// The gradient's chain rule: (gradient, saved) -> gradient * derivative.
template <class F>
struct Chain {
  template <class T>
  HOST_DEVICE T operator()(T gradient, T saved) const {
    return gradient * F::derivative(saved);
  }
};

}  // namespace paceline::functors
