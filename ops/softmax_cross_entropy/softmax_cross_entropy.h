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

// The same with a weight for each class, (classes) of the scores' type: a row's loss is multiplied by the weight of its
// label, those of label smoothing by the weights of theirs, and a mean divides by the sum of the labels' weights.
NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels,
                              const SoftmaxCrossEntropyAttributes& attributes, const NDArray& class_weights);
// Soft labels: targets (n, classes) of the scores' type are the shares of the classes. A row's loss is the sum of
// -target * weight * log softmax(scores); a mean divides by the number of rows. Both arguments have gradients.
NDArray soft_cross_entropy(const NDArray& scores, const NDArray& targets, Reduction reduction = Reduction::kMean,
                           const NDArray& class_weights = {});

}  // namespace paceline
