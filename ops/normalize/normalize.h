#pragma once
// Normalisation of the examples of a batch, each by itself. Floating types; statistics are computed in float32 at
// least. `scale` and `shift` may be none. Functions throw InvalidArgument on shapes and types that do not fit.

#include <paceline/op.h>

namespace paceline {

// The arguments of the operator standardize, which the functions below call. Over the last axes it makes the mean 0 and
// the mean square 1, then multiplies by scale and adds shift, which have the sizes of these axes.
struct StandardizeAttributes {
  int axes = 1;           // how many of the last axes
  bool centered = true;   // false: leaves the mean
  double epsilon = 1e-5;  // is added to the mean square
};

// (x - mean) / sqrt(variance + epsilon) * scale + shift over the last axes of x: as many as `scale` has, or 1 without
// it. `scale` and `shift` have the sizes of these axes.
NDArray layer_norm(const NDArray& x, const NDArray& scale, const NDArray& shift, double epsilon = 1e-5);
// x / sqrt(mean(x^2) + epsilon) * scale over the same axes.
NDArray rms_norm(const NDArray& x, const NDArray& scale, double epsilon = 1e-6);
// As layer_norm(), over each of `groups` equal groups of the channels (axis 1) with all axes behind them;
// instance_norm() has a group for each channel. `scale` and `shift` are (channels).
NDArray group_norm(const NDArray& x, int groups, const NDArray& scale, const NDArray& shift, double epsilon = 1e-5);
NDArray instance_norm(const NDArray& x, const NDArray& scale, const NDArray& shift, double epsilon = 1e-5);
// x / max(norm of x along `axis`, epsilon).
NDArray l2_normalize(const NDArray& x, int axis = 1, double epsilon = 1e-12);

}  // namespace paceline
