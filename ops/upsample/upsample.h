#pragma once
// Resampling of x (n, channels, sizes...) to larger or smaller sizes of its one to three spatial axes. Floating types.
// Functions throw InvalidArgument "[upsample] ...".

#include <paceline/op.h>

namespace paceline {

// The arguments of the functions.
struct UpsampleAttributes {
  Shape size = {};      // of the result, one for each spatial axis
  bool linear = false;  // upsample_linear()
};

// Nearest neighbour: place i of n along an axis is the one at floor(i size / n).
NDArray upsample_nearest(const NDArray& x, const Shape& size);
// Linear, bilinear or trilinear: place i of n along an axis lies at (i + 0.5) size / n - 0.5, or at the edge where that
// is outside.
NDArray upsample_linear(const NDArray& x, const Shape& size);

}  // namespace paceline
