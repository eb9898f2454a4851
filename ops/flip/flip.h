#pragma once
// Reversed axes.

#include <paceline/op.h>

namespace paceline {

// The arguments of flip().
struct FlipAttributes {
  std::vector<int> axes;  // empty: all
};

// The elements in reverse order along each of the axes, of which negative ones count from the back; along all axes
// where none is given. Any type. Throws InvalidArgument on wrong or repeated axes.
NDArray flip(const NDArray& x, std::vector<int> axes = {});

}  // namespace paceline
