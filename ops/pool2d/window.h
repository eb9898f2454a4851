#pragma once
// Pooling windows along one axis, and the planes they run over.

#include "pool2d/pool2d.h"

#include <algorithm>

namespace paceline {

struct WindowAxis {
  std::int64_t size, kernel, stride, padding, count;  // count: windows

  std::int64_t begin(std::int64_t i) const { return std::max<std::int64_t>(0, i * stride - padding); }
  std::int64_t end(std::int64_t i) const { return std::min(size, i * stride - padding + kernel); }
  // Places of window i, padding included, but not beyond it.
  std::int64_t padded_length(std::int64_t i) const {
    return std::min(size + padding, i * stride - padding + kernel) - (i * stride - padding);
  }
};

struct Windows {
  std::int64_t planes;
  WindowAxis y, x;

  std::int64_t input_plane() const { return y.size * x.size; }
  std::int64_t output_plane() const { return y.count * x.count; }
};

// Throws InvalidArgument naming `name` when the attributes do not fit x's shape (n, channels, height, width).
Windows make_windows(const char* name, const Shape& x, const Pool2dAttributes& attributes);

}  // namespace paceline
