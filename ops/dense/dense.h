#pragma once
// Fully connected layer: y = activation(x weight^T + bias), with weight (out, in) and bias (out) or none. With
// `flatten`, x (n, ...) is taken as (n, in) and y is (n, out); else the last axis of x is `in` and the others stay.
// Throws InvalidArgument "[dense] ..." on sizes that do not fit.
//
// An activation gives what the function of its name (unary.h) gives of y, but for rounding, in less time: the product's
// task applies it, on CUDA devices (not in float64) in the product's own pass. There relu may make 0 of NaN. kGeluTanh
// does so where no Tape records, and is two operators under one, whose gradient wants the argument.

#include <paceline/op.h>

namespace paceline {

struct DenseAttributes {
  bool flatten = true;
};

enum class Activation { kNone, kRelu, kGeluTanh };

NDArray dense(const NDArray& x, const NDArray& weight, const NDArray& bias = {}, bool flatten = true,
              Activation activation = Activation::kNone);

}  // namespace paceline
