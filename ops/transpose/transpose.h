#pragma once
// transpose(x, axes): axis i of the result is axis axes[i] of x; without `axes` the order is reversed. A view: shares
// x's memory. Throws InvalidArgument unless `axes` is a permutation.

#include <paceline/op.h>

namespace paceline {

struct TransposeAttributes {
  std::vector<int> axes;  // empty: reversed
};

NDArray transpose(const NDArray& x, std::vector<int> axes = {});

}  // namespace paceline
