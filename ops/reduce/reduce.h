#pragma once
// Reductions over some axes, or over all where `axes` is empty; negative axes count from the back. The result has the
// type of x, but sums and products of integers and bool are int64. Sums of float16 and bfloat16 are added in float32.
// Long sums of any floating type are added in pieces, and the sums of the pieces in float64. Results do not depend on
// the number of threads. Functions throw InvalidArgument for wrong or repeated axes. Only sums, products, any() and
// all() take bool. mean(), and functions for floating types, throw InvalidArgument for integers. max(), min() and
// norm() of infinite order throw it where a reduced axis has size 0.

#include <paceline/op.h>

namespace paceline {

// The arguments of reductions.
struct ReduceAttributes {
  std::vector<int> axes;   // empty: all; for a 0-d array, 0 and -1 are allowed and reduce nothing
  bool keep_dims = false;  // reduced axes stay, with size 1
};

// The arguments of norm().
struct NormAttributes : ReduceAttributes {
  double order = 2;  // as in norm()
};

NDArray sum(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);   // 0 for no elements
NDArray mean(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);  // NaN for no elements
// The largest and the smallest element, or NaN where an element is NaN. Elements that share this value share the
// gradient equally.
NDArray max(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
NDArray min(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
NDArray prod(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);  // the product; 1 for no elements
// log(sum(exp(x))) without overflow; -infinity for no elements. For floating types.
NDArray logsumexp(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
// (sum |x|^order)^(1 / order); for an infinite order the largest |x|. For floating types. The gradient is 0 where the
// norm is 0. Throws InvalidArgument unless order > 0.
NDArray norm(const NDArray& x, double order = 2, std::vector<int> axes = {}, bool keep_dims = false);

// any(): is any element other than 0? all(): are all elements? x may have any type, and the result is bool. Of no
// elements, any() is false and all() is true.
NDArray any(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
NDArray all(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
// The sum of the squared distances from the mean, divided by n - correction. NaN or infinite where n - correction is 0
// or less. std() is the square root of var(). The gradient of std() is 0 where std() is 0. For floating types. Throws
// InvalidArgument unless correction >= 0.
NDArray var(const NDArray& x, const std::vector<int>& axes = {}, double correction = 1, bool keep_dims = false);
NDArray std(const NDArray& x, const std::vector<int>& axes = {}, double correction = 1, bool keep_dims = false);

// Undoes a broadcast: sums over the axes along which an array of `shape` was repeated to give the shape of x.
NDArray sum_to(const NDArray& x, const Shape& shape);

}  // namespace paceline
