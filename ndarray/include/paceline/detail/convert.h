#pragma once
// The one meaning of a change of element type, on every device. Between floating types: rounds to nearest even.
// Floating to integer: truncates towards zero, values outside the range give the nearest one, NaN gives 0. Integer to
// integer: wraps. Anything to bool: is it not zero.

#include <paceline/dtype.h>
#include <paceline/host_device.h>

#include <limits>
#include <type_traits>

namespace paceline::detail {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

template <class To, class From>
PACELINE_HOST_DEVICE inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsHalf<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (kIsHalf<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr To kLowest = std::numeric_limits<To>::min();
    constexpr To kHighest = std::numeric_limits<To>::max();
    constexpr From kBelow = static_cast<From>(kLowest);
    constexpr From kAbove = static_cast<From>(kHighest / 2 + 1) * 2;  // a power of two, hence exact
    // Selects instead of branches, so that loops over it become vector code; the cast itself is always in range.
    const bool high = value >= kAbove;
    const bool inside = value > kBelow && !high;
    const To truncated = static_cast<To>(inside ? value : From(0));
    const To outside = high ? kHighest : (value <= kBelow ? kLowest : To(0));
    return inside ? truncated : outside;
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace paceline::detail
