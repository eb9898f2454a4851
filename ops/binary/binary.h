#pragma once
// Functions of two variables with NumPy's broadcasting, between arrays of one type or an array and a number. Arithmetic
// takes every type but bool; divide and power floating types only. Comparisons take every type, give bool and have no
// gradient. A number is converted to the array's type first. Throws InvalidArgument when types differ or shapes do not
// broadcast.

#include <paceline/op.h>

namespace paceline {

NDArray add(const NDArray& a, const NDArray& b);
NDArray subtract(const NDArray& a, const NDArray& b);
NDArray multiply(const NDArray& a, const NDArray& b);
NDArray divide(const NDArray& a, const NDArray& b);
NDArray power(const NDArray& a, const NDArray& b);
NDArray maximum(const NDArray& a, const NDArray& b);  // NaN if either is; equal elements share the gradient
NDArray minimum(const NDArray& a, const NDArray& b);
NDArray equal(const NDArray& a, const NDArray& b);
NDArray not_equal(const NDArray& a, const NDArray& b);
NDArray greater(const NDArray& a, const NDArray& b);
NDArray greater_equal(const NDArray& a, const NDArray& b);
NDArray less(const NDArray& a, const NDArray& b);
NDArray less_equal(const NDArray& a, const NDArray& b);

// Attributes of the operators add_scalar, subtract_scalar, ...
struct ScalarAttributes {
  double scalar = 0;
  bool scalar_first = false;  // scalar - a instead of a - scalar
};

NDArray add(const NDArray& a, double b);
NDArray subtract(const NDArray& a, double b);
NDArray subtract(double a, const NDArray& b);
NDArray multiply(const NDArray& a, double b);
NDArray divide(const NDArray& a, double b);
NDArray divide(double a, const NDArray& b);
NDArray power(const NDArray& a, double b);
NDArray power(double a, const NDArray& b);
NDArray maximum(const NDArray& a, double b);  // where equal, the gradient is 0
NDArray minimum(const NDArray& a, double b);
NDArray equal(const NDArray& a, double b);
NDArray not_equal(const NDArray& a, double b);
NDArray greater(const NDArray& a, double b);
NDArray greater_equal(const NDArray& a, double b);
NDArray less(const NDArray& a, double b);
NDArray less_equal(const NDArray& a, double b);

inline NDArray operator+(const NDArray& a, const NDArray& b) { return add(a, b); }
inline NDArray operator+(const NDArray& a, double b) { return add(a, b); }
inline NDArray operator+(double a, const NDArray& b) { return add(b, a); }
inline NDArray operator-(const NDArray& a, const NDArray& b) { return subtract(a, b); }
inline NDArray operator-(const NDArray& a, double b) { return subtract(a, b); }
inline NDArray operator-(double a, const NDArray& b) { return subtract(a, b); }
inline NDArray operator*(const NDArray& a, const NDArray& b) { return multiply(a, b); }
inline NDArray operator*(const NDArray& a, double b) { return multiply(a, b); }
inline NDArray operator*(double a, const NDArray& b) { return multiply(b, a); }
inline NDArray operator/(const NDArray& a, const NDArray& b) { return divide(a, b); }
inline NDArray operator/(const NDArray& a, double b) { return divide(a, b); }
inline NDArray operator/(double a, const NDArray& b) { return divide(a, b); }

// In place: `a` is overwritten and returned (invoke_in_place in op.h says what is refused). `b` may broadcast to `a`.
NDArray add_(const NDArray& a, const NDArray& b);
NDArray subtract_(const NDArray& a, const NDArray& b);
NDArray multiply_(const NDArray& a, const NDArray& b);
NDArray divide_(const NDArray& a, const NDArray& b);
NDArray maximum_(const NDArray& a, const NDArray& b);
NDArray minimum_(const NDArray& a, const NDArray& b);
NDArray add_(const NDArray& a, double b);
NDArray subtract_(const NDArray& a, double b);
NDArray multiply_(const NDArray& a, double b);
NDArray divide_(const NDArray& a, double b);
NDArray maximum_(const NDArray& a, double b);
NDArray minimum_(const NDArray& a, double b);

// Also of a view: x.narrow(0, 0, 2) += y.
inline NDArray operator+=(const NDArray& a, const NDArray& b) { return add_(a, b); }
inline NDArray operator+=(const NDArray& a, double b) { return add_(a, b); }
inline NDArray operator-=(const NDArray& a, const NDArray& b) { return subtract_(a, b); }
inline NDArray operator-=(const NDArray& a, double b) { return subtract_(a, b); }
inline NDArray operator*=(const NDArray& a, const NDArray& b) { return multiply_(a, b); }
inline NDArray operator*=(const NDArray& a, double b) { return multiply_(a, b); }
inline NDArray operator/=(const NDArray& a, const NDArray& b) { return divide_(a, b); }
inline NDArray operator/=(const NDArray& a, double b) { return divide_(a, b); }

}  // namespace paceline
