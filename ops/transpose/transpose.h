#pragma once
// Axes in another order.

#include <paceline/op.h>

namespace paceline {

// The arguments of transpose().
struct TransposeAttributes {
  std::vector<int> axes;  // empty: reversed
};

// x with its axes in another order: axis i of the result is axis axes[i] of x. Without `axes` the order is reversed. A
// view: shares the memory of x. Throws InvalidArgument unless `axes` is a permutation.
NDArray transpose(const NDArray& x, std::vector<int> axes = {});

}  // namespace paceline
