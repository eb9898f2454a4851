#pragma once
// The mathematics of the unary family, for host and device. A functor maps an element; `derivative` gives the slope
// from what is saved, the argument or the result. Functors with parameters hold their attributes.

#include "shared/fast_math.h"
#include "unary/unary.h"

#include <paceline/detail/wrapping.h>

#include <cmath>
#include <type_traits>

namespace paceline::functors {

enum class Saved { kArgument, kResult };

struct Relu {
  static constexpr bool kIntegers = true;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return x < T(0) ? T(0) : x;
  }
  template <class T>
  PACELINE_HOST_DEVICE static T chain(T gradient, T y) {
    return y <= T(0) ? T(0) : gradient;  // a NaN y passes the gradient on, as 0 would hide the NaN
  }
};

struct Sigmoid {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return T(1) / (T(1) + fast_exp(-x));
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T y) {
    return y * (T(1) - y);
  }
};

struct Tanh {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return fast_tanh(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T y) {
    return T(1) - y * y;
  }
};

struct Gelu {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  // erfc keeps the relative precision of the left tail, where 1 + erf cancels.
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return x * T(0.5) * fast_erfc(x * T(-0.70710678118654752440));
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    const T density = fast_exp(T(-0.5) * x * x) * T(0.39894228040143267794);
    return T(0.5) * fast_erfc(x * T(-0.70710678118654752440)) + x * density;
  }
};

struct Softplus {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return (x > T(0) ? x : T(0)) + std::log1p(std::exp(x > T(0) ? -x : x));
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    return T(1) / (T(1) + fast_exp(-x));
  }
};

struct Exp {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return fast_exp(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T y) {
    return y;
  }
};

struct Log {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return std::log(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    return T(1) / x;
  }
};

struct Sqrt {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return std::sqrt(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T y) {
    return T(0.5) / y;
  }
};

struct Rsqrt {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return T(1) / std::sqrt(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T y) {
    return T(-0.5) * y * y * y;
  }
};

struct Square {
  static constexpr bool kIntegers = true;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return detail::wrapping_product(x, x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    return T(2) * x;
  }
};

struct Reciprocal {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return T(1) / x;
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T y) {
    return -y * y;
  }
};

struct Abs {
  static constexpr bool kIntegers = true;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::fabs(x);
    else
      return x < T(0) ? detail::wrapping_difference(T(0), x) : x;
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);
  }
};

struct Sign {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);
  }
};

struct Negative {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return static_cast<T>(-static_cast<detail::wrapping_t<T>>(x));
  }
};

struct Sin {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return std::sin(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    return std::cos(x);
  }
};

struct Cos {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return std::cos(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    return -std::sin(x);
  }
};

struct GeluTanh {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)) keeps the relative precision of the left tail.
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return x * logistic(T(2) * inner(x));
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    const T s = logistic(T(2) * inner(x));
    const T slope = T(0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
    return s + T(2) * x * s * (T(1) - s) * slope;
  }

 private:
  template <class T>
  PACELINE_HOST_DEVICE static T logistic(T x) {
    return T(1) / (T(1) + fast_exp(-x));
  }
  template <class T>
  PACELINE_HOST_DEVICE static T inner(T x) {
    return T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
  }
};

struct Silu {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return x / (T(1) + fast_exp(-x));
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    const T s = T(1) / (T(1) + fast_exp(-x));
    return s * (T(1) + x * (T(1) - s));
  }
};

struct Softsign {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return x / (T(1) + std::fabs(x));
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    const T size = T(1) + std::fabs(x);
    return (T(1) + (x - x)) / (size * size);  // x - x makes it NaN where x is infinite, as the function is there
  }
};

struct Selu {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return T(kScale) * (x > T(0) ? x : T(kAlpha) * std::expm1(x));
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    return T(kScale) * (x <= T(0) ? T(kAlpha) * std::exp(x) : T(1));
  }

 private:
  static constexpr double kScale = 1.0507009873554804934193349852946;
  static constexpr double kAlpha = 1.6732632423543772848170429916717;
};

struct Expm1 {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kResult;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return std::expm1(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T y) {
    return y + T(1);
  }
};

struct Log1p {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return std::log1p(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    return T(1) / (T(1) + x);
  }
};

struct Erf {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return std::erf(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE static T derivative(T x) {
    return T(1.12837916709551257390) * std::exp(-x * x);
  }
};

struct Floor {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::floor(x);
    else
      return x;
  }
};

struct Ceil {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::ceil(x);
    else
      return x;
  }
};

struct Round {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_floating_point_v<T>)
      return std::rint(x);
    else
      return x;
  }
};

struct LeakyRelu {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  using Attributes = LeakyReluAttributes;
  Attributes attributes;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return x > T(0) ? x : x * T(attributes.slope);
  }
  template <class T>
  PACELINE_HOST_DEVICE T derivative(T x) const {
    return x > T(0) ? T(1) : T(attributes.slope);
  }
};

struct Elu {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  using Attributes = EluAttributes;
  Attributes attributes;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return x > T(0) ? x : T(attributes.alpha) * std::expm1(x);
  }
  template <class T>
  PACELINE_HOST_DEVICE T derivative(T x) const {
    return x <= T(0) ? T(attributes.alpha) * std::exp(x) : T(1);
  }
};

struct Clip {
  static constexpr bool kIntegers = false;
  static constexpr Saved kSaved = Saved::kArgument;
  using Attributes = ClipAttributes;
  Attributes attributes;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    const T above = x < T(attributes.low) ? T(attributes.low) : x;
    return above > T(attributes.high) ? T(attributes.high) : above;
  }
  template <class T>
  PACELINE_HOST_DEVICE T chain(T gradient, T x) const {
    return ((x > T(attributes.low)) & (x < T(attributes.high))) ? gradient : T(0);
  }
};

// F with the parameters of a call.
template <class F>
F functor_of(const void* attributes) {
  if constexpr (requires { typename F::Attributes; })
    return F{*static_cast<const typename F::Attributes*>(attributes)};
  else
    return F();
}

// The gradient's chain rule: (gradient, saved) -> gradient * derivative. A functor with a flat part has chain() in
// place of derivative(): an infinite gradient times 0 would be NaN.
template <class F>
struct Chain {
  F f;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T gradient, T saved) const {
    if constexpr (requires { f.chain(gradient, saved); })
      return f.chain(gradient, saved);
    else
      return gradient * f.derivative(saved);
  }
};

}  // namespace paceline::functors
