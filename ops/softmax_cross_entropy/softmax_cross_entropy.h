#pragma once
// Losses of classifiers.

#include <paceline/op.h>

#include <optional>

namespace paceline {

// What becomes of the losses of all rows: their mean, their sum, or all of them.
enum class Reduction { kMean, kSum, kNone };

// The arguments of softmax_cross_entropy().
struct SoftmaxCrossEntropyAttributes {
  Reduction reduction = Reduction::kMean;  // of the losses
  double label_smoothing = 0;              // in [0, 1): the share of a label's weight that all classes get
  std::optional<std::int64_t> ignored_label = std::nullopt;  // rows with it have loss and gradient 0, and do not count
};

// -log softmax(scores)[label], computed in one pass. `scores` (n, classes) have a floating type; `labels` (n) hold
// class numbers of any type but bool. The result has shape (n) for Reduction::kNone, else it is a scalar of shape ().
// The mean of no row is NaN. A label outside [0, classes) that is not ignored fails the task with InvalidArgument.
// Throws InvalidArgument on shapes.
NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels, Reduction reduction = Reduction::kMean);
NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels,
                              const SoftmaxCrossEntropyAttributes& attributes);

// The same with a weight for each class: (classes) of the scores' type. A row's loss is multiplied by the weight of its
// label, and parts by label smoothing by the weights of their classes. A mean divides by the sum of the labels'
// weights.
NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels,
                              const SoftmaxCrossEntropyAttributes& attributes, const NDArray& class_weights);
// The loss for soft labels: `targets` (n, classes), of the scores' type, are the shares of the classes. A row's loss is
// the sum of -target * weight * log softmax(scores). A mean divides by the number of rows. Scores and targets have
// gradients.
NDArray soft_cross_entropy(const NDArray& scores, const NDArray& targets, Reduction reduction = Reduction::kMean,
                           const NDArray& class_weights = {});

}  // namespace paceline
