#pragma once
// Positions of the largest elements; no gradients.

#include <paceline/op.h>

namespace paceline {

struct ArgmaxAttributes {
  int axis = -1;
  bool keep_dims = false;
};

// int64 position of the first largest element along `axis`; the first NaN counts as largest. A 0-d array has its
// largest at 0. Throws InvalidArgument on a wrong axis or one of size 0.
NDArray argmax(const NDArray& x, int axis = -1, bool keep_dims = false);
// The same for the smallest; the first NaN counts as smallest.
NDArray argmin(const NDArray& x, int axis = -1, bool keep_dims = false);

// How many rows of `scores` (n, classes) have their first largest element at `labels` (n; any type but bool): an int64
// scalar of shape ().
NDArray top1_count(const NDArray& scores, const NDArray& labels);

}  // namespace paceline
