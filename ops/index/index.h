#pragma once
// Elements chosen by position. Positions are int32 or int64 in [0, size of the axis). For take() and gather_nd() they
// are in [-size, size), where negative ones count from the back. A position outside fails the task with an
// InvalidArgument that names it. Negative axes count from the back. Functions throw InvalidArgument for wrong shapes,
// types and axes.

#include <paceline/number.h>
#include <paceline/op.h>

namespace paceline {

// The arguments of gather() and scatter_add().
struct IndexAttributes {
  int axis = 0;  // that positions count along
};
// The arguments of take().
struct TakeAttributes {
  int axis = 0;                  // that positions count along
  bool sparse_gradient = false;  // for axis 0: the gradient of x is row-sparse and stores one row for each position
};
// The arguments of the operator with which gather_nd() turns the positions along several axes into one.
struct FlatPositionsAttributes {
  std::vector<std::int64_t> sizes;  // of the axes that positions name
};
// The arguments of one_hot().
struct OneHotAttributes {
  std::int64_t classes = 1;       // size of the new axis
  DType dtype = DType::kFloat32;  // of the result
};

// The array with [i][j][k] = x[positions[i][j][k]][j][k], for axis 0; it has the shape of `positions`. `positions` has
// as many axes as x. Along all axes except `axis`, it is no larger than x.
NDArray gather(const NDArray& x, const NDArray& positions, int axis);
// A copy of x with values[i][j][k] added to element [positions[i][j][k]][j][k], for axis 0. `values` has the shape of
// `positions`. Values for one element are added in their order along `axis`.
NDArray scatter_add(const NDArray& x, const NDArray& positions, const NDArray& values, int axis);
// The slices of x at `positions` along `axis`. In the result's shape the shape of `positions` takes the place of the
// axis.
NDArray take(const NDArray& x, const NDArray& positions, int axis = 0, bool sparse_gradient = false);
// x[p[0][i]][p[1][i]]... for positions p (axes, ...), as in MXNet: row k of p holds positions along axis k of x. The
// result has the shape of p without axis 0, then the axes of x that p does not name.
NDArray gather_nd(const NDArray& x, const NDArray& positions);

// The positions where x is not 0: int64 (count, x.ndim()), in row-major order. Blocks until x is computed, as the
// result's shape depends on it. Throws InvalidArgument in captured functions.
NDArray nonzero(const NDArray& x);
// The elements of x where `mask` (bool) holds, one after the other. x and `mask` broadcast to one shape. Blocks until
// `mask` is computed. Throws InvalidArgument in captured functions.
NDArray masked_select(const NDArray& x, const NDArray& mask);
// x with `value` where `mask` (bool) holds. `mask` broadcasts to x. The gradient of x is 0 where `mask` holds.
NDArray masked_fill(const NDArray& x, const NDArray& mask, Number value);

// 1 at each position along a new last axis of size `classes`, else 0. Without gradient.
NDArray one_hot(const NDArray& positions, std::int64_t classes, DType dtype = DType::kFloat32);

}  // namespace paceline
