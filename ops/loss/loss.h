#pragma once
// Losses of a prediction and a target of one shape and one floating type. Reduction::kNone gives a number for each
// element, the other reductions a scalar of shape (). Both arguments have gradients. The functions throw
// InvalidArgument where shapes or types differ. There is no CTC loss: Debian packages no library that computes it on
// the CPU.

#include <paceline/ops/softmax_cross_entropy.h>

namespace paceline {

// The arguments of huber_loss().
struct HuberAttributes {
  double delta = 1;  // where the square becomes a line
};

// (prediction - target)^2, and |prediction - target|.
NDArray squared_loss(const NDArray& prediction, const NDArray& target, Reduction reduction = Reduction::kMean);
NDArray absolute_loss(const NDArray& prediction, const NDArray& target, Reduction reduction = Reduction::kMean);
// With d = prediction - target: d^2 / 2 where |d| <= delta, else delta * (|d| - delta / 2). Throws InvalidArgument
// unless delta > 0.
NDArray huber_loss(const NDArray& prediction, const NDArray& target, double delta = 1,
                   Reduction reduction = Reduction::kMean);
// max(0, 1 - prediction * target) for targets -1 and 1.
NDArray hinge_loss(const NDArray& prediction, const NDArray& target, Reduction reduction = Reduction::kMean);
// -target * log(s) - (1 - target) * log(1 - s) with s = sigmoid(prediction), without overflow.
NDArray sigmoid_cross_entropy(const NDArray& prediction, const NDArray& target, Reduction reduction = Reduction::kMean);
// target * (log(target) - prediction), where the prediction is the logarithm of probabilities. The loss is 0 where the
// target is 0 and the prediction is finite.
NDArray kl_divergence(const NDArray& prediction, const NDArray& target, Reduction reduction = Reduction::kMean);

}  // namespace paceline
