#pragma once
// Losses: a scalar, the mean over the examples, from a network's output and the batch's labels.

#include <paceline/ndarray.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace paceline::nn {

using Loss = std::function<NDArray(const NDArray& output, const NDArray& label)>;

// scores (..., classes), label: class numbers (...), or the classes' shares, of the scores' shape and type.
NDArray softmax_ce(const NDArray& scores, const NDArray& label);

struct CrossEntropyOptions {
  NDArray class_weights = {};  // (classes): see softmax_cross_entropy.h; the mean is then weighted too
  double label_smoothing = 0;  // not with shares
  std::optional<std::int64_t> ignored_label = {};
};
// softmax_ce() with these.
Loss cross_entropy(const CrossEntropyOptions& options);
// The mean of the squares of output - label, halved. Shapes may differ by axes of size 1 alone, so that (n) and (n, 1)
// are not broadcast to (n, n). Throws InvalidArgument for others.
NDArray l2(const NDArray& output, const NDArray& label);

}  // namespace paceline::nn
