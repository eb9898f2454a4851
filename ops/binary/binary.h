#pragma once
// Functions of two variables with NumPy's broadcasting, between two arrays, or an array and a number. Both are
// converted to result_type() first, in which the result is computed, as in PyTorch. They throw InvalidArgument where
// shapes do not broadcast, and where the type of the result cannot hold a number.

#include <paceline/number.h>
#include <paceline/op.h>

namespace paceline {

// The type of a result, as in number.h. Beside an array with axes, an array without axes counts by its category alone,
// as a number does.
DType result_type(const NDArray& a, const NDArray& b);
DType result_type(const NDArray& a, Number b);

// Arithmetic, of every type but bool with bool. Division of integers gives float32; power() takes floating types only.
NDArray add(const NDArray& a, const NDArray& b);
NDArray subtract(const NDArray& a, const NDArray& b);
NDArray multiply(const NDArray& a, const NDArray& b);
NDArray divide(const NDArray& a, const NDArray& b);
NDArray power(const NDArray& a, const NDArray& b);
// The larger, or the smaller element: NaN if either is. Equal elements share the gradient.
NDArray maximum(const NDArray& a, const NDArray& b);
NDArray minimum(const NDArray& a, const NDArray& b);
// floor_divide() rounds towards minus infinity; remainder() is a - b * floor_divide(a, b), with the sign of b. Integers
// divided by 0 give 0.
NDArray remainder(const NDArray& a, const NDArray& b);
NDArray floor_divide(const NDArray& a, const NDArray& b);
// Comparisons of any types: bool, without gradient.
NDArray equal(const NDArray& a, const NDArray& b);
NDArray not_equal(const NDArray& a, const NDArray& b);
NDArray greater(const NDArray& a, const NDArray& b);
NDArray greater_equal(const NDArray& a, const NDArray& b);
NDArray less(const NDArray& a, const NDArray& b);
NDArray less_equal(const NDArray& a, const NDArray& b);
// Logic of any types, in which every number but 0 is true: bool, without gradient.
NDArray logical_and(const NDArray& a, const NDArray& b);
NDArray logical_or(const NDArray& a, const NDArray& b);
NDArray logical_xor(const NDArray& a, const NDArray& b);
NDArray logical_not(const NDArray& x);
// Logic of the bits of integers and bool.
NDArray bitwise_and(const NDArray& a, const NDArray& b);
NDArray bitwise_or(const NDArray& a, const NDArray& b);
NDArray bitwise_xor(const NDArray& a, const NDArray& b);
NDArray bitwise_not(const NDArray& x);
// Is an element NaN, infinite, neither? bool, of any type.
NDArray isnan(const NDArray& x);
NDArray isinf(const NDArray& x);
NDArray isfinite(const NDArray& x);

// Attributes of the operators add_scalar, subtract_scalar, ...
struct ScalarAttributes {
  double scalar = 0;          // the number
  bool scalar_first = false;  // scalar - a instead of a - scalar
};

// The same functions of an array and a number. Where an element equals the number, maximum() and minimum() have
// gradient 0.
NDArray add(const NDArray& a, Number b);
NDArray subtract(const NDArray& a, Number b);
NDArray subtract(Number a, const NDArray& b);
NDArray multiply(const NDArray& a, Number b);
NDArray divide(const NDArray& a, Number b);
NDArray divide(Number a, const NDArray& b);
NDArray power(const NDArray& a, Number b);
NDArray power(Number a, const NDArray& b);
NDArray maximum(const NDArray& a, Number b);
NDArray minimum(const NDArray& a, Number b);
NDArray equal(const NDArray& a, Number b);
NDArray not_equal(const NDArray& a, Number b);
NDArray greater(const NDArray& a, Number b);
NDArray greater_equal(const NDArray& a, Number b);
NDArray less(const NDArray& a, Number b);
NDArray less_equal(const NDArray& a, Number b);
NDArray remainder(const NDArray& a, Number b);
NDArray remainder(Number a, const NDArray& b);
NDArray floor_divide(const NDArray& a, Number b);
NDArray floor_divide(Number a, const NDArray& b);
NDArray logical_and(const NDArray& a, Number b);
NDArray logical_or(const NDArray& a, Number b);
NDArray logical_xor(const NDArray& a, Number b);
NDArray bitwise_and(const NDArray& a, Number b);
NDArray bitwise_or(const NDArray& a, Number b);
NDArray bitwise_xor(const NDArray& a, Number b);

// The operators of C++ for these functions.
inline NDArray operator+(const NDArray& a, const NDArray& b) { return add(a, b); }
inline NDArray operator+(const NDArray& a, Number b) { return add(a, b); }
inline NDArray operator+(Number a, const NDArray& b) { return add(b, a); }
inline NDArray operator-(const NDArray& a, const NDArray& b) { return subtract(a, b); }
inline NDArray operator-(const NDArray& a, Number b) { return subtract(a, b); }
inline NDArray operator-(Number a, const NDArray& b) { return subtract(a, b); }
inline NDArray operator*(const NDArray& a, const NDArray& b) { return multiply(a, b); }
inline NDArray operator*(const NDArray& a, Number b) { return multiply(a, b); }
inline NDArray operator*(Number a, const NDArray& b) { return multiply(b, a); }
inline NDArray operator/(const NDArray& a, const NDArray& b) { return divide(a, b); }
inline NDArray operator/(const NDArray& a, Number b) { return divide(a, b); }
inline NDArray operator/(Number a, const NDArray& b) { return divide(a, b); }
inline NDArray operator%(const NDArray& a, const NDArray& b) { return remainder(a, b); }
inline NDArray operator%(const NDArray& a, Number b) { return remainder(a, b); }
inline NDArray operator&(const NDArray& a, const NDArray& b) { return bitwise_and(a, b); }
inline NDArray operator|(const NDArray& a, const NDArray& b) { return bitwise_or(a, b); }
inline NDArray operator^(const NDArray& a, const NDArray& b) { return bitwise_xor(a, b); }

// In place: `a` is overwritten and returned; invoke_in_place() says what is refused. `b` may broadcast to `a`. The type
// of the result must be that of `a`.
NDArray add_(const NDArray& a, const NDArray& b);
NDArray subtract_(const NDArray& a, const NDArray& b);
NDArray multiply_(const NDArray& a, const NDArray& b);
NDArray divide_(const NDArray& a, const NDArray& b);
NDArray maximum_(const NDArray& a, const NDArray& b);
NDArray minimum_(const NDArray& a, const NDArray& b);
NDArray add_(const NDArray& a, Number b);
NDArray subtract_(const NDArray& a, Number b);
NDArray multiply_(const NDArray& a, Number b);
NDArray divide_(const NDArray& a, Number b);
NDArray maximum_(const NDArray& a, Number b);
NDArray minimum_(const NDArray& a, Number b);

// The operators of C++ in place, also for a view: x.narrow(0, 0, 2) += y.
inline NDArray operator+=(const NDArray& a, const NDArray& b) { return add_(a, b); }
inline NDArray operator+=(const NDArray& a, Number b) { return add_(a, b); }
inline NDArray operator-=(const NDArray& a, const NDArray& b) { return subtract_(a, b); }
inline NDArray operator-=(const NDArray& a, Number b) { return subtract_(a, b); }
inline NDArray operator*=(const NDArray& a, const NDArray& b) { return multiply_(a, b); }
inline NDArray operator*=(const NDArray& a, Number b) { return multiply_(a, b); }
inline NDArray operator/=(const NDArray& a, const NDArray& b) { return divide_(a, b); }
inline NDArray operator/=(const NDArray& a, Number b) { return divide_(a, b); }

}  // namespace paceline
