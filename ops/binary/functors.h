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

// Gives F bool results or results of the arguments' type.
template <class F>
inline constexpr bool kIsComparison = std::is_same_v<decltype(F()(0, 0)), bool>;

}  // namespace paceline::functors
