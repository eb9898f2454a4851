#pragma once
// Reversed axes.

#include <paceline/op.h>

namespace paceline {

// The arguments of flip().
struct FlipAttributes {
  std::vector<int> axes;  // empty: all
};

// The elements in reverse order along each of the axes, or along all where none is given. Negative axes count from the
// back. Any type. Throws InvalidArgument on wrong or repeated axes.
NDArray flip(const NDArray& x, std::vector<int> axes = {});

}  // namespace paceline
