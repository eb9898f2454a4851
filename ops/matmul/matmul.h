#pragma once
// Products of matrices.

#include <paceline/op.h>

namespace paceline {

// The arguments of matmul().
struct MatmulAttributes {
  bool transpose_a = false;  // not for (..., m, k) x (k, n) with more than two axes
  bool transpose_b = false;  // exchanges the last two axes of b
};

// The product of floating arrays: (m, k) x (k, n), batches (b, m, k) x (b, k, n), or (..., m, k) x (k, n). transpose_a
// and transpose_b exchange the last two axes of that argument first. A vector on the left is a row, on the right a
// column, and the result has no such axis: (k) x (k) is a scalar. Throws InvalidArgument where sizes or types do not
// fit, and where a vector is to be transposed.
NDArray matmul(const NDArray& a, const NDArray& b, bool transpose_a = false, bool transpose_b = false);

// matmul() for any number of leading axes, which broadcast.
NDArray batch_matmul(const NDArray& a, const NDArray& b, bool transpose_a = false, bool transpose_b = false);
// The array with [i][j] = a[i] * b[j], of two vectors.
NDArray outer(const NDArray& a, const NDArray& b);
// Sums of products by the names of axes, such as einsum("bij,bjk->bik", {a, b}). A letter in two operands is the same
// position in both. A letter that is not in the result is summed over. No letter may occur twice in one operand. An
// ellipsis stands for axes without letters, which broadcast from the last on; without one in the result they are summed
// over. Operands are multiplied from left to right. Throws InvalidArgument where the equation and the operands do not
// fit.
NDArray einsum(const std::string& equation, const std::vector<NDArray>& operands);

}  // namespace paceline
