#pragma once
// Positions of the largest elements; no gradients.

#include <paceline/op.h>

namespace paceline {

// The arguments of argmax() and argmin().
struct ArgmaxAttributes {
  int axis = -1;           // negative: from the back
  bool keep_dims = false;  // the axis stays, with size 1
};

// The int64 position of the first largest element along `axis`. The first NaN counts as largest. A 0-d array has its
// largest at 0. Throws InvalidArgument on a wrong axis, or one of size 0.
NDArray argmax(const NDArray& x, int axis = -1, bool keep_dims = false);
// The same for the smallest. The first NaN counts as smallest.
NDArray argmin(const NDArray& x, int axis = -1, bool keep_dims = false);

// How many rows of `scores` (n, classes) have their first largest element at `labels`: an int64 scalar of shape ().
// Labels (n) have any type but bool.
NDArray top1_count(const NDArray& scores, const NDArray& labels);

}  // namespace paceline
