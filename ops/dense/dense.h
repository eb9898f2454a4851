#pragma once
// Fully connected layer: y = activation(x weight^T + bias), with weight (out, in) and bias (out) or none. With
// `flatten`, x (n, ...) is taken as (n, in) and y is (n, out); else the last axis of x is `in` and the others stay.
// Throws InvalidArgument "[dense] ..." (with an activation "[dense_relu] ..." and so on) on sizes that do not fit.
//
// An activation gives what the function of its name (unary.h) gives; the product's task applies it. kGeluTanh is an
// operator of its own under a Tape, as its gradient wants the argument, and is rounded otherwise without one on CUDA
// devices, with a bias and not in float64, where the pass that makes the product applies it.

#include <paceline/op.h>

namespace paceline {

struct DenseAttributes {
  bool flatten = true;
};

enum class Activation { kNone, kRelu, kGeluTanh };

NDArray dense(const NDArray& x, const NDArray& weight, const NDArray& bias = {}, bool flatten = true,
              Activation activation = Activation::kNone);

}  // namespace paceline
