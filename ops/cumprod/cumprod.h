#pragma once
// Cumulative products.

#include <paceline/op.h>

namespace paceline {

// The arguments of cumprod().
struct CumprodAttributes {
  int axis = -1;  // negative: from the back
};

// Element i of a line along `axis` is the product of the elements 0 to i. Any type but bool. Floating types are
// multiplied in float64; integers wrap in their type. A 0-d array is a line of one element. Elements that are 0 do not
// disturb the gradient, because it needs no division. Throws InvalidArgument on a wrong axis.
NDArray cumprod(const NDArray& x, int axis = -1);

}  // namespace paceline
