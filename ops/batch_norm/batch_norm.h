#pragma once
// Batch normalisation.

#include <paceline/op.h>

namespace paceline {

// The arguments of batch_norm().
struct BatchNormAttributes {
  double momentum = 0.9;  // the share of running statistics that stays
  double epsilon = 1e-5;  // added to the variance
  bool training = true;   // uses the statistics of the batch, instead of the running ones
};

// Normalises x (n, channels, ...) over all axes but the second: (x - mean) / sqrt(variance + epsilon) * gamma + beta.
// In training, mean and variance (biased) are those of the batch, and the running ones are updated in place: running =
// momentum * running + (1 - momentum) * batch. One value per channel has the variance 0, and the result is beta.
// Otherwise the running ones are used. gamma, beta and the running statistics have shape (channels). They are float32
// where x is float16 or bfloat16, else of x's type. Throws InvalidArgument "[batch_norm] ..." for wrong shapes and
// types.
NDArray batch_norm(const NDArray& x, const NDArray& gamma, const NDArray& beta, const NDArray& running_mean,
                   const NDArray& running_variance, const BatchNormAttributes& attributes = {});

}  // namespace paceline
