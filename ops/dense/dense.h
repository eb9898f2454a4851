#pragma once
// Fully connected layers.

#include <paceline/op.h>

namespace paceline {

// The arguments of dense().
struct DenseAttributes {
  bool flatten = true;  // x (n, ...) is (n, in)
};

// What dense() applies to its result: nothing, relu() or gelu_tanh().
enum class Activation { kNone, kRelu, kGeluTanh };

// activation(x weight^T + bias), with weight (out, in) and bias (out) or none. With `flatten`, x (n, ...) is taken as
// (n, in), and the result is (n, out). Without, the last axis of x is `in`, and the others stay. Throws InvalidArgument
// "[dense] ..." (with an activation "[dense_relu] ..." and so on) on sizes that do not fit.
//
// The task of the product applies the activation, which gives what the function of its name gives (unary.h). Under a
// Tape kGeluTanh is a task of its own, as its gradient needs the argument. Without a Tape it is rounded otherwise on
// CUDA devices, where there is a bias and the type is not float64.
NDArray dense(const NDArray& x, const NDArray& weight, const NDArray& bias = {}, bool flatten = true,
              Activation activation = Activation::kNone);

}  // namespace paceline
