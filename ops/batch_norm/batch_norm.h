#pragma once
// Batch normalisation of x (n, channels, ...) over all axes but the second:
// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta.
//
// In training, mean and (biased) variance are those of the batch, and the running ones are updated in place:
// running = momentum * running + (1 - momentum) * batch. Otherwise the running ones are used. gamma, beta and the
// running statistics have shape (channels); they are float32 when x is float16 or bfloat16, else of x's type.

#include <paceline/op.h>

namespace paceline {

struct BatchNormAttributes {
  double momentum = 0.9;
  double epsilon = 1e-5;
  bool training = true;
};

NDArray batch_norm(const NDArray& x, const NDArray& gamma, const NDArray& beta, const NDArray& running_mean,
                   const NDArray& running_variance, const BatchNormAttributes& attributes = {});

}  // namespace paceline
