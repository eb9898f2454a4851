#pragma once
// Pooling windows along one axis, and the planes they run over.

#include "pool/pool.h"

#include <algorithm>
#include <array>

namespace paceline {

struct WindowAxis {
  std::int64_t size = 1, kernel = 1, stride = 1, padding = 0, count = 1;  // count: windows
  bool equal_parts = false;

  std::int64_t begin(std::int64_t i) const {
    return equal_parts ? i * size / count : std::max<std::int64_t>(0, i * stride - padding);
  }
  std::int64_t end(std::int64_t i) const {
    return equal_parts ? ((i + 1) * size + count - 1) / count : std::min(size, i * stride - padding + kernel);
  }
  // Places of window i, padding included, but not beyond it.
  std::int64_t padded_length(std::int64_t i) const {
    if (equal_parts) return end(i) - begin(i);
    return std::min(size + padding, i * stride - padding + kernel) - (i * stride - padding);
  }
};

// Always three axes: those that x lacks come first and have one place.
struct Windows {
  std::int64_t planes = 0;
  std::array<WindowAxis, 3> axes = {};

  std::int64_t input_places() const { return axes[0].size * axes[1].size * axes[2].size; }
  std::int64_t output_places() const { return axes[0].count * axes[1].count * axes[2].count; }
};

// Throws InvalidArgument naming `name` when the attributes do not fit x's shape (n, channels, sizes...).
Windows make_windows(const char* name, const Shape& x, const PoolAttributes& attributes);

}  // namespace paceline
