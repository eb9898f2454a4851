#pragma once
// cumsum(x, axis): element i of a line along `axis` is the sum of the elements 0 to i; with `reverse`, of i to the
// last. Any type but bool; floating types are accumulated in float64. A 0-d array is a line of one element. Throws
// InvalidArgument on a wrong axis.

#include <paceline/op.h>

namespace paceline {

struct CumsumAttributes {
  int axis = -1;
  bool reverse = false;
};

NDArray cumsum(const NDArray& x, int axis = -1, bool reverse = false);

}  // namespace paceline
