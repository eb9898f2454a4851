#pragma once
// Losses: a scalar, the mean over the examples, from a network's output and the batch's labels.

#include <paceline/ndarray.h>

#include <functional>

namespace paceline::nn {

using Loss = std::function<NDArray(const NDArray& output, const NDArray& label)>;

NDArray softmax_ce(const NDArray& scores, const NDArray& label);  // scores (..., classes), label: class numbers (...)
// The mean of the squares of output - label, halved. Shapes may differ by axes of size 1 alone, so that (n) and (n, 1)
// are not broadcast to (n, n). Throws InvalidArgument for others.
NDArray l2(const NDArray& output, const NDArray& label);

}  // namespace paceline::nn
