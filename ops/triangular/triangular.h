#pragma once
// Triangles of matrices, which are the last two axes, behind any number of others.

#include <paceline/op.h>

namespace paceline {

// The arguments of tril() and triu().
struct TriangleAttributes {
  bool upper = false;         // triu()
  std::int64_t diagonal = 0;  // where the triangle ends

  // For kernels: the diagonal, or the nearest to it that makes a difference for this shape.
  std::int64_t within(const Shape& shape) const {
    const std::int64_t rows = shape[shape.ndim() - 2], columns = shape[shape.ndim() - 1];
    return diagonal < -rows ? -rows : diagonal > columns ? columns : diagonal;
  }
};

// x with zeros in place of the elements above a diagonal (tril), or below it (triu). Diagonal 0 is the main one;
// positive numbers count to the right of it. Any type. Throws InvalidArgument for fewer than two axes.
NDArray tril(const NDArray& x, std::int64_t diagonal = 0);
NDArray triu(const NDArray& x, std::int64_t diagonal = 0);

// The arguments of triangular_solve().
struct TriangularSolveAttributes {
  bool upper = false;          // which triangle of `a` is read; the other may hold anything
  bool transpose = false;      // solves with the transpose of that triangle
  bool unit_diagonal = false;  // the diagonal counts as ones, and is not read
};

// The x (..., n, k) with a x = b, where the matrices a (..., n, n) are triangular. Both have one floating type and the
// same leading axes. A zero on the diagonal gives infinities and NaN. Throws InvalidArgument where shapes or types do
// not fit.
NDArray triangular_solve(const NDArray& a, const NDArray& b, const TriangularSolveAttributes& options = {});

}  // namespace paceline
