#pragma once
// Joins arrays.

#include <paceline/op.h>

namespace paceline {

// The arguments of concat().
struct ConcatAttributes {
  int axis = 0;  // negative: from the back
};

// Joins arrays of one type along an axis. Throws InvalidArgument where other sizes differ.
NDArray concat(const std::vector<NDArray>& arrays, int axis);
// Joins arrays of one type and shape along a new axis. Throws InvalidArgument where shapes differ.
NDArray stack(const std::vector<NDArray>& arrays, int axis = 0);

}  // namespace paceline
