#pragma once
// Losses: a scalar, the mean over the examples, from a network's output and the batch's labels.

#include <paceline/ndarray.h>

#include <functional>

namespace paceline::nn {

using Loss = std::function<NDArray(const NDArray& output, const NDArray& label)>;

NDArray softmax_ce(const NDArray& scores, const NDArray& label);  // scores (..., classes), label: class numbers (...)
NDArray l2(const NDArray& output, const NDArray& label);          // mean of squares / 2

}  // namespace paceline::nn
