#pragma once
// Functions of one variable, applied to every element. The result has the shape and type of x.
//
// - relu, square, abs, sign, negative, floor, ceil and round take floating types and signed integers.
// - sigmoid, tanh, exp, expm1, log, log1p, erf, sqrt, rsqrt, reciprocal, sin, cos and softsign take any type. Integers
// and bool
//   become float32, but not in place.
// - All others take floating types.
//
// float16 and bfloat16 are computed in float32. NaN gives NaN, but sign(NaN) is 0. exp, tanh and sigmoid in float32 are
// within 4 units in the last place of normal results. Functions throw InvalidArgument on other types.

#include <paceline/number.h>
#include <paceline/op.h>

#include <limits>

namespace paceline {

// The arguments of leaky_relu().
struct LeakyReluAttributes {
  double slope = 0.01;  // for negative elements
};
// The arguments of elu().
struct EluAttributes {
  double alpha = 1;  // a factor for negative elements
};
// The arguments of clip().
struct ClipAttributes {
  double low = -std::numeric_limits<double>::infinity();  // the least result
  double high = std::numeric_limits<double>::infinity();  // the largest result
};

NDArray relu(const NDArray& x);                             // max(x, 0)
NDArray leaky_relu(const NDArray& x, double slope = 0.01);  // x > 0 ? x : slope * x
NDArray elu(const NDArray& x, double alpha = 1);            // x > 0 ? x : alpha * (exp(x) - 1)
NDArray selu(const NDArray& x);                             // elu scaled to keep mean 0 and variance 1
NDArray sigmoid(const NDArray& x);                          // 1 / (1 + exp(-x))
NDArray tanh(const NDArray& x);                             // hyperbolic tangent
NDArray gelu(const NDArray& x);                             // x * P(N(0, 1) <= x), with the error function
NDArray gelu_tanh(const NDArray& x);   // the approximation x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
NDArray silu(const NDArray& x);        // x * sigmoid(x)
NDArray softplus(const NDArray& x);    // log(1 + exp(x))
NDArray softsign(const NDArray& x);    // x / (1 + |x|)
NDArray exp(const NDArray& x);         // e^x
NDArray expm1(const NDArray& x);       // exp(x) - 1, exact near 0
NDArray log(const NDArray& x);         // natural logarithm
NDArray log1p(const NDArray& x);       // log(1 + x), exact near 0
NDArray erf(const NDArray& x);         // error function
NDArray sqrt(const NDArray& x);        // square root; NaN for negative elements
NDArray rsqrt(const NDArray& x);       // 1 / sqrt(x)
NDArray square(const NDArray& x);      // x * x
NDArray reciprocal(const NDArray& x);  // 1 / x
NDArray abs(const NDArray& x);         // gradient 0 at 0
NDArray sign(const NDArray& x);        // -1, 0 or 1; gradient 0
NDArray negative(const NDArray& x);    // -x
NDArray sin(const NDArray& x);         // of radians
NDArray cos(const NDArray& x);         // of radians
NDArray floor(const NDArray& x);       // the next integer at or below x; gradient 0
NDArray ceil(const NDArray& x);        // the next integer at or above x; gradient 0
NDArray round(const NDArray& x);       // the nearest integer, halves to even; gradient 0
// x limited to [low, high]. The gradient is 0 outside and at the ends. Throws InvalidArgument unless low <= high.
NDArray clip(const NDArray& x, Number low, Number high);

// negative(x).
inline NDArray operator-(const NDArray& x) { return negative(x); }

// In place: `x` is overwritten and returned. invoke_in_place() says what is refused.
NDArray relu_(const NDArray& x);
NDArray sigmoid_(const NDArray& x);
NDArray tanh_(const NDArray& x);
NDArray gelu_(const NDArray& x);
NDArray gelu_tanh_(const NDArray& x);
NDArray silu_(const NDArray& x);
NDArray softplus_(const NDArray& x);
NDArray softsign_(const NDArray& x);
NDArray selu_(const NDArray& x);
NDArray exp_(const NDArray& x);
NDArray expm1_(const NDArray& x);
NDArray log_(const NDArray& x);
NDArray log1p_(const NDArray& x);
NDArray erf_(const NDArray& x);
NDArray sqrt_(const NDArray& x);
NDArray rsqrt_(const NDArray& x);
NDArray square_(const NDArray& x);
NDArray reciprocal_(const NDArray& x);
NDArray abs_(const NDArray& x);
NDArray sin_(const NDArray& x);
NDArray cos_(const NDArray& x);
NDArray sign_(const NDArray& x);
NDArray floor_(const NDArray& x);
NDArray ceil_(const NDArray& x);
NDArray round_(const NDArray& x);
NDArray negative_(const NDArray& x);
NDArray leaky_relu_(const NDArray& x, double slope = 0.01);
NDArray elu_(const NDArray& x, double alpha = 1);
NDArray clip_(const NDArray& x, Number low, Number high);

}  // namespace paceline
