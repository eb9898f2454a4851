#pragma once
// Sums, differences and products of one type. Integers wrap, as in every file and message that MXNet wrote; in C++ only
// unsigned ones may.

#include <paceline/host_device.h>

#include <type_traits>

namespace paceline::detail {

// The type to compute in.
template <class T>
using wrapping_t = typename std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, std::make_unsigned<T>,
                                               std::type_identity<T>>::type;

template <class T>
PACELINE_HOST_DEVICE inline T wrapping_sum(T a, T b) {
  return static_cast<T>(static_cast<wrapping_t<T>>(a) + static_cast<wrapping_t<T>>(b));
}

template <class T>
PACELINE_HOST_DEVICE inline T wrapping_difference(T a, T b) {
  return static_cast<T>(static_cast<wrapping_t<T>>(a) - static_cast<wrapping_t<T>>(b));
}

template <class T>
PACELINE_HOST_DEVICE inline T wrapping_product(T a, T b) {
  return static_cast<T>(static_cast<wrapping_t<T>>(a) * static_cast<wrapping_t<T>>(b));
}

}  // namespace paceline::detail
