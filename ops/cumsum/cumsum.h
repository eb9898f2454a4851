#pragma once
// Cumulative sums.

#include <paceline/op.h>

namespace paceline {

// The arguments of cumsum().
struct CumsumAttributes {
  int axis = -1;         // negative: from the back
  bool reverse = false;  // sums from the back
};

// Element i of a line along `axis` is the sum of the elements 0 to i; with `reverse`, of i to the last. Any type but
// bool. Floating types are added in float64; integers wrap in their type. A 0-d array is a line of one element. Throws
// InvalidArgument on a wrong axis.
NDArray cumsum(const NDArray& x, int axis = -1, bool reverse = false);

}  // namespace paceline
