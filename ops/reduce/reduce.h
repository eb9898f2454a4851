#pragma once
// Reductions over some axes (negative ones count from the back), or over all of them when `axes` is empty. The result
// keeps the type, but sums and products of integers and of bool are int64. Sums of float16 and bfloat16 are accumulated
// in float32, and long ones of any floating type in pieces that are added in float64. Results do not depend on the
// number of threads. Throws InvalidArgument on wrong or repeated axes, other reductions of bool, mean of integers, max,
// min and largest norm of nothing.

#include <paceline/op.h>

namespace paceline {

struct ReduceAttributes {
  std::vector<int> axes;   // empty: all; of a 0-d array 0 and -1 name nothing
  bool keep_dims = false;  // keep reduced axes with size 1
};

struct NormAttributes : ReduceAttributes {
  double order = 2;
};

NDArray sum(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);   // 0 for nothing
NDArray mean(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);  // NaN for nothing
// NaN if any element is. Elements that share the extreme value share the gradient equally.
NDArray max(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
NDArray min(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
NDArray prod(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);  // 1 for nothing
// log(sum(exp(x))) without overflow; -infinity for nothing. Floating types.
NDArray logsumexp(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
// (sum |x|^order)^(1 / order); infinity: the largest |x|. Floating types. For orders 1, 2 and infinity the gradient
// where the norm is 0 is 0.
NDArray norm(const NDArray& x, double order = 2, std::vector<int> axes = {}, bool keep_dims = false);

// Is any element, are all elements other than 0? bool, of any type; of nothing: false, and true.
NDArray any(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
NDArray all(const NDArray& x, std::vector<int> axes = {}, bool keep_dims = false);
// The mean of the squared distances from the mean, divided by n - correction instead of n; floating types. NaN or
// infinite where that is 0 or less. std() is its root, with gradient 0 where it is 0.
NDArray var(const NDArray& x, const std::vector<int>& axes = {}, double correction = 1, bool keep_dims = false);
NDArray std(const NDArray& x, const std::vector<int>& axes = {}, double correction = 1, bool keep_dims = false);

// Undoes a broadcast: sums over the axes along which an array of `shape` was repeated to give x's shape.
NDArray sum_to(const NDArray& x, const Shape& shape);

}  // namespace paceline
