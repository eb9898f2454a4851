#pragma once
// Resampling of x (n, channels, sizes...) to other sizes of its spatial axes, one to three, larger or smaller. Floating
// types. Throw InvalidArgument "[upsample] ...".

#include <paceline/op.h>

namespace paceline {

struct UpsampleAttributes {
  Shape size = {};  // of the result, one for each spatial axis
  bool linear = false;
};

// Place i of n takes the one at floor(i size / n).
NDArray upsample_nearest(const NDArray& x, const Shape& size);
// Linear, bilinear or trilinear: place i of n lies at (i + 0.5) size / n - 0.5, at the edge where that is outside.
NDArray upsample_linear(const NDArray& x, const Shape& size);

}  // namespace paceline
