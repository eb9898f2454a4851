#pragma once
// softmax(x)_i = exp(x_i - max x) / sum_j exp(x_j - max x) along `axis` (negative: from the back), and its logarithm.
// Floating types. Throws InvalidArgument on a wrong axis.

#include <paceline/op.h>

namespace paceline {

struct SoftmaxAttributes {
  int axis = -1;
};

NDArray softmax(const NDArray& x, int axis = -1);
NDArray log_softmax(const NDArray& x, int axis = -1);

}  // namespace paceline
