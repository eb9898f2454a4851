#pragma once
// Joins arrays of one type along an axis; all other sizes must be equal (InvalidArgument otherwise).

#include <paceline/op.h>

namespace paceline {

struct ConcatAttributes {
  int axis = 0;
};

NDArray concat(const std::vector<NDArray>& arrays, int axis);
// Joins arrays of one shape along a new axis.
NDArray stack(const std::vector<NDArray>& arrays, int axis = 0);

}  // namespace paceline
