#pragma once
// Loss of a classifier: -log softmax(scores)[label], computed in one pass.
// scores (n, classes) of a floating type; labels (n) hold class numbers (any type but bool). The result has shape (n)
// for Reduction::kNone, else it is a scalar of shape (). A label outside [0, classes) fails the task with
// InvalidArgument. Throws InvalidArgument on shapes.

#include <paceline/op.h>

namespace paceline {

enum class Reduction { kMean, kSum, kNone };

struct SoftmaxCrossEntropyAttributes {
  Reduction reduction = Reduction::kMean;
};

NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels, Reduction reduction = Reduction::kMean);

}  // namespace paceline
