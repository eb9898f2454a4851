#pragma once
// Fully connected layer: y = x weight^T + bias, with weight (out, in) and bias (out) or none. With `flatten`, x (n,
// ...) is taken as (n, in) and y is (n, out); else the last axis of x is `in` and the others stay. Throws
// InvalidArgument
// "[dense] ..." on sizes that do not fit.

#include <paceline/op.h>

namespace paceline {

struct DenseAttributes {
  bool flatten = true;
};

NDArray dense(const NDArray& x, const NDArray& weight, const NDArray& bias = {}, bool flatten = true);

}  // namespace paceline
