#pragma once
// Normalisation of the examples of a batch, each by itself. Floating types; statistics are computed in float32 at
// least. `scale` and `shift` may be none. Throw InvalidArgument on shapes and types that do not fit.

#include <paceline/op.h>

namespace paceline {

// Of the operator standardize: the last `axes` axes become mean 0 (if centered) and mean square 1, then times scale
// plus shift, which have the sizes of these axes. One pass over x, and one over x and the gradient for each way back.
struct StandardizeAttributes {
  int axes = 1;
  bool centered = true;
  double epsilon = 1e-5;
};

// Over the last axes of x, as many as `scale` has (1 without it); `scale` and `shift` have their sizes.
NDArray layer_norm(const NDArray& x, const NDArray& scale, const NDArray& shift, double epsilon = 1e-5);
// The same without mean: x / sqrt(mean(x^2) + epsilon) * scale.
NDArray rms_norm(const NDArray& x, const NDArray& scale, double epsilon = 1e-6);
// Over the channels (axis 1) in `groups` equal groups and everything behind them; `scale` and `shift`: (channels).
NDArray group_norm(const NDArray& x, int groups, const NDArray& scale, const NDArray& shift, double epsilon = 1e-5);
NDArray instance_norm(const NDArray& x, const NDArray& scale, const NDArray& shift, double epsilon = 1e-5);
// x / max(norm of x along `axis`, epsilon)
NDArray l2_normalize(const NDArray& x, int axis = 1, double epsilon = 1e-12);

}  // namespace paceline
