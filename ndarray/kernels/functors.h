#pragma once
// The arithmetic of the kernels in this folder, once for CPU and CUDA.

#include <paceline/detail/convert.h>
#include <paceline/detail/wrapping.h>
#include <paceline/random.h>

#include <cstdint>
#include <type_traits>

namespace paceline::detail {

struct Add {
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T a, T b) const {
    return wrapping_sum(a, b);
  }
};

// Real is the type to compute in: float for float32 and narrower, else double.
template <class T>
using real_t = std::conditional_t<std::is_same_v<accumulator_t<T>, float>, float, double>;

// A whole factor of int64, whose values a double does not hold, multiplies as integers do; the result is int64 then.
PACELINE_HOST_DEVICE inline bool is_whole(double factor) {
  return factor > -0x1p63 && factor < 0x1p63 && static_cast<double>(static_cast<std::int64_t>(factor)) == factor;
}
template <class T, class Real>
PACELINE_HOST_DEVICE inline auto rounded(Real value) {
  if constexpr (std::is_same_v<T, std::int64_t>)
    return convert<T>(value);
  else
    return value;
}

template <class Real>
struct Axpy {
  Real alpha;
  template <class T>
  PACELINE_HOST_DEVICE auto operator()(T x, T y) const {
    if constexpr (std::is_same_v<T, std::int64_t>)
      if (is_whole(alpha)) return wrapping_sum(y, wrapping_product(static_cast<T>(alpha), x));
    return rounded<T>(static_cast<Real>(y) + alpha * static_cast<Real>(x));
  }
};

template <class Real>
struct Scale {
  Real alpha;
  template <class T>
  PACELINE_HOST_DEVICE auto operator()(T x) const {
    if constexpr (std::is_same_v<T, std::int64_t>)
      if (is_whole(alpha)) return wrapping_product(static_cast<T>(alpha), x);
    return rounded<T>(alpha * static_cast<Real>(x));
  }
};

// Sums are kept in float64, those of integers in int64.
template <class T>
using sum_t = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

struct Identity {
  template <class Sum, class T>
  PACELINE_HOST_DEVICE static Sum of(T value) {
    return static_cast<Sum>(value);
  }
};

struct Square {
  template <class Sum, class T>
  PACELINE_HOST_DEVICE static Sum of(T value) {
    const auto wide = static_cast<double>(value);
    return static_cast<Sum>(wide * wide);
  }
};

// Elements 0 to 3 (float64: 0 and 1) of block `index`: first is the lowest value or the mean, second the width or the
// deviation.
template <class T>
inline constexpr int kRandomBlock = std::is_same_v<T, double> ? 2 : 4;

template <class T>
struct UniformBlock {
  double lowest;
  double width;
  PACELINE_HOST_DEVICE T place(double u) const {
    const T value = static_cast<T>(static_cast<accumulator_t<T>>(lowest + u * width));
    // Rounding may reach the excluded upper end.
    return static_cast<double>(value) < lowest + width ? value : static_cast<T>(static_cast<accumulator_t<T>>(lowest));
  }
  PACELINE_HOST_DEVICE void operator()(std::uint64_t seed, std::uint64_t index, T* out) const {
    const RandomBits bits = random_bits(seed, index);
    if constexpr (std::is_same_v<T, double>) {
      out[0] = place(uniform_double(bits.word[0], bits.word[1]));
      out[1] = place(uniform_double(bits.word[2], bits.word[3]));
    } else {
      for (int i = 0; i < 4; ++i) out[i] = place(uniform_float(bits.word[i]));
    }
  }
};

template <class T>
struct NormalBlock {
  double mean;
  double deviation;
  PACELINE_HOST_DEVICE T place(double z) const {
    return static_cast<T>(static_cast<accumulator_t<T>>(mean + deviation * z));
  }
  PACELINE_HOST_DEVICE void operator()(std::uint64_t seed, std::uint64_t index, T* out) const {
    const RandomBits bits = random_bits(seed, index);
    if constexpr (std::is_same_v<T, double>) {
      const RandomPair z =
          normal_pair(1 - uniform_double(bits.word[0], bits.word[1]), uniform_double(bits.word[2], bits.word[3]));
      out[0] = place(z.first);
      out[1] = place(z.second);
    } else {
      for (int i = 0; i < 4; i += 2) {
        const RandomPair z = normal_pair((static_cast<double>(bits.word[i]) + 1) * 0x1p-32,
                                         static_cast<double>(bits.word[i + 1]) * 0x1p-32);
        out[i] = place(z.first);
        out[i + 1] = place(z.second);
      }
    }
  }
};

}  // namespace paceline::detail
