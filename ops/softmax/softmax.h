#pragma once
// Softmax and its logarithm.

#include <paceline/op.h>

namespace paceline {

// The arguments of softmax() and log_softmax().
struct SoftmaxAttributes {
  int axis = -1;  // negative: from the back
};

// exp(x_i - max x) / sum_j exp(x_j - max x) along `axis`, and its logarithm. Floating types. A 0-d array is a line of
// one element. Throws InvalidArgument on a wrong axis.
NDArray softmax(const NDArray& x, int axis = -1);
NDArray log_softmax(const NDArray& x, int axis = -1);
// The same of x / temperature, where `mask` holds: bool, which broadcasts to x, or none for everywhere. Elsewhere the
// result is 0, and its logarithm -infinity. A line where the mask holds nowhere is NaN. Throws InvalidArgument on a
// wrong mask, and unless temperature > 0.
NDArray softmax(const NDArray& x, const NDArray& mask, double temperature = 1, int axis = -1);
NDArray log_softmax(const NDArray& x, const NDArray& mask, double temperature = 1, int axis = -1);

}  // namespace paceline
