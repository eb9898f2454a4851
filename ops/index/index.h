#pragma once
// Elements chosen by position. Positions are int32 or int64 in [0, size of the axis), or for take() and gather_nd() in
// [-size, size), from the back; one outside fails the task with an InvalidArgument that names it. Negative axes count
// from the back. Throw InvalidArgument on shapes, types and axes.

#include <paceline/number.h>
#include <paceline/op.h>

namespace paceline {

struct IndexAttributes {
  int axis = 0;
};
struct TakeAttributes {
  int axis = 0;
  bool sparse_gradient = false;  // of x, along axis 0: row-sparse (the positions as they came, repeated ones included)
};
struct FlatPositionsAttributes {
  std::vector<std::int64_t> sizes;
};
struct OneHotAttributes {
  std::int64_t classes = 1;
  DType dtype = DType::kFloat32;
};

// out[i][j][k] = x[positions[i][j][k]][j][k] for axis 0. `positions` has x's dimensions, no larger than x but along
// `axis`. The result has its shape.
NDArray gather(const NDArray& x, const NDArray& positions, int axis);
// A copy of x with values[i][j][k] added to element [positions[i][j][k]][j][k] (axis 0), in order. `values` has
// the shape of `positions`.
NDArray scatter_add(const NDArray& x, const NDArray& positions, const NDArray& values, int axis);
// The slices of x at `positions` (any shape), which takes the place of `axis` in the result's shape.
NDArray take(const NDArray& x, const NDArray& positions, int axis = 0, bool sparse_gradient = false);
// x[p[0][i]][p[1][i]]... for positions p (axes, ...), as MXNet's: row k of p holds the positions along axis k of x. The
// result has the shape of p without axis 0, then the axes of x that p does not name.
NDArray gather_nd(const NDArray& x, const NDArray& positions);

// Where x is not 0: int64 (count, x.ndim()), in row-major order. Waits for x, as the result's shape depends on it; so
// does masked_select(). Not in captured functions.
NDArray nonzero(const NDArray& x);
// The elements of x where `mask` (bool) holds, one after the other; the two broadcast.
NDArray masked_select(const NDArray& x, const NDArray& mask);
// x with `value` where `mask` (bool, which broadcasts to x) holds; there the gradient is 0.
NDArray masked_fill(const NDArray& x, const NDArray& mask, Number value);

// 1 at each position along a new last axis of size `classes`, else 0; no gradient.
NDArray one_hot(const NDArray& positions, std::int64_t classes, DType dtype = DType::kFloat32);

}  // namespace paceline
