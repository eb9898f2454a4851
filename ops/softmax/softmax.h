#pragma once
// softmax(x)_i = exp(x_i - max x) / sum_j exp(x_j - max x) along `axis` (negative: from the back), and its logarithm.
// Floating types. A 0-d array is a line of one element. Throws InvalidArgument on a wrong axis.

#include <paceline/op.h>

namespace paceline {

struct SoftmaxAttributes {
  int axis = -1;
};

NDArray softmax(const NDArray& x, int axis = -1);
NDArray log_softmax(const NDArray& x, int axis = -1);
// Of x / temperature, where `mask` (bool, broadcasts to x) holds; elsewhere 0 (the logarithm: -infinity). A line
// without any place is NaN. temperature > 0; `mask` may be none. Throws InvalidArgument on a wrong mask or temperature.
NDArray softmax(const NDArray& x, const NDArray& mask, double temperature = 1, int axis = -1);
NDArray log_softmax(const NDArray& x, const NDArray& mask, double temperature = 1, int axis = -1);

}  // namespace paceline
