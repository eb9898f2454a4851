#pragma once
// Triangles of matrices: the last two axes, any number of axes before them.

#include <paceline/op.h>

namespace paceline {

struct TriangleAttributes {
  bool upper = false;
  std::int64_t diagonal = 0;

  // The diagonal, or the nearest to it that matters.
  std::int64_t within(const Shape& shape) const {
    const std::int64_t rows = shape[shape.ndim() - 2], columns = shape[shape.ndim() - 1];
    return diagonal < -rows ? -rows : diagonal > columns ? columns : diagonal;
  }
};

// x with zeros in place of the elements above (tril) or below (triu) a diagonal: 0 is the main one, positive numbers
// count to the right of it. Any type. Throws InvalidArgument with fewer than two axes.
NDArray tril(const NDArray& x, std::int64_t diagonal = 0);
NDArray triu(const NDArray& x, std::int64_t diagonal = 0);

struct TriangularSolveAttributes {
  bool upper = false;          // which triangle of `a` is read, the other may hold anything
  bool transpose = false;      // solve with the transpose of that triangle
  bool unit_diagonal = false;  // the diagonal counts as ones and is not read
};

// The x of (..., n, k) with a x = b, where the square matrices a (..., n, n) are triangular. Of one floating type; the
// leading axes are the same. A zero on the diagonal gives infinities and NaN. Throws InvalidArgument when shapes or
// types do not fit.
NDArray triangular_solve(const NDArray& a, const NDArray& b, const TriangularSolveAttributes& options = {});

}  // namespace paceline
