#pragma once
// Functions of one variable, applied to every element. Floating types; relu, square, abs, sign and negative also take
// signed integers. The result has the argument's shape and type; float16 and bfloat16 are computed in float32. NaN
// propagates. exp, tanh and sigmoid in float32 are within 4 units in the last place of normal results.

#include <paceline/op.h>

namespace paceline {

NDArray relu(const NDArray& x);     // max(x, 0)
NDArray sigmoid(const NDArray& x);  // 1 / (1 + exp(-x))
NDArray tanh(const NDArray& x);
NDArray gelu(const NDArray& x);      // x * P(N(0, 1) <= x), with the error function
NDArray softplus(const NDArray& x);  // log(1 + exp(x))
NDArray exp(const NDArray& x);
NDArray log(const NDArray& x);
NDArray sqrt(const NDArray& x);
NDArray rsqrt(const NDArray& x);  // 1 / sqrt(x)
NDArray square(const NDArray& x);
NDArray reciprocal(const NDArray& x);  // 1 / x
NDArray abs(const NDArray& x);         // gradient 0 at 0
NDArray sign(const NDArray& x);        // -1, 0 or 1; gradient 0
NDArray negative(const NDArray& x);
NDArray sin(const NDArray& x);
NDArray cos(const NDArray& x);

inline NDArray operator-(const NDArray& x) { return negative(x); }

}  // namespace paceline
