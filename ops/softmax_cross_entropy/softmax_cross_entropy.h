#pragma once
// Loss of a classifier: -log softmax(scores)[label], computed in one pass.
// scores (n, classes) of a floating type; labels (n) hold class numbers (any type but bool). The result has shape (n)
// for Reduction::kNone, else it is a scalar of shape (). Rows with the ignored label have loss and gradient 0, and do
// not count in the mean (of no row: NaN). `label_smoothing` in [0, 1) spreads that share of the label's weight over all
// classes. Another label outside [0, classes) fails the task with InvalidArgument. Throws InvalidArgument on shapes.

#include <paceline/op.h>

#include <optional>

namespace paceline {

enum class Reduction { kMean, kSum, kNone };

struct SoftmaxCrossEntropyAttributes {
  Reduction reduction = Reduction::kMean;
  double label_smoothing = 0;
  std::optional<std::int64_t> ignored_label = std::nullopt;
};

NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels, Reduction reduction = Reduction::kMean);
NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels,
                              const SoftmaxCrossEntropyAttributes& attributes);

}  // namespace paceline
