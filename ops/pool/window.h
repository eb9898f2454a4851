#pragma once
// Pooling windows along one axis, and the planes they run over.

#include "pool/pool.h"

#include <paceline/host_device.h>

#include <algorithm>
#include <array>

namespace paceline {

struct WindowAxis {
  std::int64_t size = 1, kernel = 1, stride = 1, padding = 0, count = 1;  // `count` is the number of windows
  bool equal_parts = false;

  PACELINE_HOST_DEVICE std::int64_t begin(std::int64_t i) const {
    return equal_parts ? i * size / count : std::max<std::int64_t>(0, i * stride - padding);
  }
  PACELINE_HOST_DEVICE std::int64_t end(std::int64_t i) const {
    return equal_parts ? ((i + 1) * size + count - 1) / count : std::min(size, i * stride - padding + kernel);
  }
  // The number of places of window i. Places in the padding count; places beyond the padding do not.
  PACELINE_HOST_DEVICE std::int64_t padded_length(std::int64_t i) const {
    if (equal_parts) return end(i) - begin(i);
    return std::min(size + padding, i * stride - padding + kernel) - (i * stride - padding);
  }
  // The windows that hold a place: [first_with, end_with).
  PACELINE_HOST_DEVICE std::int64_t first_with(std::int64_t place) const {
    if (equal_parts) return place * count / size;
    const std::int64_t behind = place + padding - kernel;  // may be negative
    return behind < 0 ? 0 : std::min(count, behind / stride + 1);
  }
  PACELINE_HOST_DEVICE std::int64_t end_with(std::int64_t place) const {
    if (equal_parts) return ((place + 1) * count + size - 1) / size;
    return std::min(count, (place + padding) / stride + 1);
  }
};

// Always three axes: those that x lacks come first and have one place.
struct Windows {
  std::int64_t planes = 0;
  std::array<WindowAxis, 3> axes = {};

  PACELINE_HOST_DEVICE std::int64_t input_places() const { return axes[0].size * axes[1].size * axes[2].size; }
  PACELINE_HOST_DEVICE std::int64_t output_places() const { return axes[0].count * axes[1].count * axes[2].count; }
};

// What an average multiplies the sum of one window by.
template <class A>
PACELINE_HOST_DEVICE A average_share(const Windows& windows, bool count_padding,
                                     const std::array<std::int64_t, 3>& window) {
  std::int64_t places = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    const WindowAxis& axis = windows.axes[i];
    places *= count_padding ? axis.padded_length(window[i]) : axis.end(window[i]) - axis.begin(window[i]);
  }
  return A(1) / static_cast<A>(places);
}

// Throws InvalidArgument naming `name` when the attributes do not fit x's shape (n, channels, sizes...).
Windows make_windows(const char* name, const Shape& x, const PoolAttributes& attributes);

}  // namespace paceline
