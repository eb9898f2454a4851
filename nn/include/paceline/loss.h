#pragma once
// Losses.

#include <paceline/ndarray.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace paceline::nn {

// A scalar, the mean over the examples, from a network's output and the batch's labels.
using Loss = std::function<NDArray(const NDArray& output, const NDArray& label)>;

// Softmax and cross-entropy of scores (..., classes). `label` is class numbers (...), or the shares of the classes,
// with the shape and type of the scores. Throws InvalidArgument on shapes.
NDArray softmax_ce(const NDArray& scores, const NDArray& label);

// Options of cross_entropy(), as softmax_cross_entropy.h explains them.
struct CrossEntropyOptions {
  NDArray class_weights = {};                      // (classes); the mean is then weighted, too
  double label_smoothing = 0;                      // not with shares
  std::optional<std::int64_t> ignored_label = {};  // examples with this label do not count
};
// softmax_ce() with these options.
Loss cross_entropy(const CrossEntropyOptions& options);
// Half the mean of the squares of output - label. Shapes may differ by axes of size 1 only, so that (n) and (n, 1) do
// not broadcast to (n, n). Throws InvalidArgument for others.
NDArray l2(const NDArray& output, const NDArray& label);

}  // namespace paceline::nn
