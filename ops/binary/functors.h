#pragma once
// The mathematics of the binary family, for host and device.

#include <paceline/detail/wrapping.h>

#include <cmath>
#include <type_traits>

namespace paceline::functors {

struct Add {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return detail::wrapping_sum(a, b);
  }
};

struct Subtract {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return detail::wrapping_difference(a, b);
  }
};

struct Multiply {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return detail::wrapping_product(a, b);
  }
};

struct Divide {
  static constexpr bool kIntegers = false;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return a / b;
  }
};

struct Power {
  static constexpr bool kIntegers = false;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return std::pow(a, b);
  }
};

struct Maximum {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return a >= b || a != a ? a : b;
  }
};

struct Minimum {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return a <= b || a != a ? a : b;
  }
};

template <class T>
PACELINE_HOST_DEVICE bool is_negative(T value) {
  if constexpr (std::is_signed_v<T>)
    return value < 0;
  else
    return false;
}

// A remainder other than 0 has the sign of b, as in NumPy and PyTorch. An integer divided by 0 leaves the remainder 0.
struct Remainder {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    T rest;
    if constexpr (std::is_integral_v<T>) {
      if (b == 0 || (std::is_signed_v<T> && b == static_cast<T>(-1))) return 0;
      rest = static_cast<T>(a % b);
    } else {
      rest = std::fmod(a, b);
    }
    return rest != 0 && is_negative(rest) != is_negative(b) ? static_cast<T>(rest + b) : rest;
  }
};

// The largest whole number that is not above a / b. An integer divided by 0 gives 0.
struct FloorDivide {
  static constexpr bool kIntegers = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return detail::wrapping_difference(T(0), a);
      const T quotient = static_cast<T>(a / b);
      return a % b != 0 && is_negative(a) != is_negative(b) ? static_cast<T>(quotient - 1) : quotient;
    } else {
      if (b == 0) return a / b;
      // fmod() is exact, whereas a / b may be rounded up to a whole number.
      const T rest = std::fmod(a, b);
      const T whole = (a - rest) / b - (rest != 0 && is_negative(rest) != is_negative(b) ? T(1) : T(0));
      if (whole == 0) return std::copysign(T(0), a / b);
      // The nearest whole number. floor(whole + 0.5) would round large ones: their sum with 0.5 is no number of type T.
      const T down = std::floor(whole);
      return whole - down > T(0.5) ? down + T(1) : down;
    }
  }
};

// The three bitwise functors take integers and bool only.
struct BitwiseAnd {
  static constexpr bool kWholeAlone = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct BitwiseOr {
  static constexpr bool kWholeAlone = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct BitwiseXor {
  static constexpr bool kWholeAlone = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

// Every value but 0 counts as true, NaN too.
struct LogicalAnd {
  template <class T>
  PACELINE_HOST_DEVICE bool operator()(T a, T b) const {
    return a != T(0) && b != T(0);
  }
};
struct LogicalOr {
  template <class T>
  PACELINE_HOST_DEVICE bool operator()(T a, T b) const {
    return a != T(0) || b != T(0);
  }
};
struct LogicalXor {
  template <class T>
  PACELINE_HOST_DEVICE bool operator()(T a, T b) const {
    return (a != T(0)) != (b != T(0));
  }
};

struct Equal {
  template <class T>
  PACELINE_HOST_DEVICE bool operator()(T a, T b) const {
    return a == b;
  }
};
struct NotEqual {
  template <class T>
  PACELINE_HOST_DEVICE bool operator()(T a, T b) const {
    return a != b;
  }
};
struct Greater {
  template <class T>
  PACELINE_HOST_DEVICE bool operator()(T a, T b) const {
    return a > b;
  }
};
struct GreaterEqual {
  template <class T>
  PACELINE_HOST_DEVICE bool operator()(T a, T b) const {
    return a >= b;
  }
};
struct Less {
  template <class T>
  PACELINE_HOST_DEVICE bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessEqual {
  template <class T>
  PACELINE_HOST_DEVICE bool operator()(T a, T b) const {
    return a <= b;
  }
};

// Does F give bool results? If not, its results have the type of the arguments.
template <class F>
inline constexpr bool kIsComparison = std::is_same_v<decltype(F()(0, 0)), bool>;

// The element types that a functor takes. kNumbers leaves bool out. kWhole means the integers and bool.
enum class Operands { kAll, kNumbers, kFloating, kWhole };

template <class F>
constexpr Operands operands_of() {
  if constexpr (kIsComparison<F>)
    return Operands::kAll;
  else if constexpr (requires { F::kWholeAlone; })
    return Operands::kWhole;
  else
    return F::kIntegers ? Operands::kNumbers : Operands::kFloating;
}

template <class F, class T>
constexpr bool takes() {
  switch (operands_of<F>()) {
    case Operands::kAll: return true;
    case Operands::kNumbers: return !std::is_same_v<T, bool>;
    case Operands::kFloating: return !std::is_integral_v<T>;
    case Operands::kWhole: return std::is_integral_v<T>;
  }
  return false;
}

}  // namespace paceline::functors
