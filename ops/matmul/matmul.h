#pragma once
// Matrix product of floating arrays: (m, k) x (k, n), batches (b, m, k) x (b, k, n), or (..., m, k) x (k, n). With
// transpose_a / transpose_b the last two axes of that argument are exchanged first. A vector on the left is a row, on
// the right a column, and the result has no such axis: (k) x (k) is a scalar. Throws InvalidArgument when sizes or
// types do not fit, and where a vector is to be transposed.

#include <paceline/op.h>

namespace paceline {

struct MatmulAttributes {
  bool transpose_a = false;  // not for (..., m, k) x (k, n) with more than two axes
  bool transpose_b = false;
};

NDArray matmul(const NDArray& a, const NDArray& b, bool transpose_a = false, bool transpose_b = false);

// The same for any number of leading axes, which broadcast.
NDArray batch_matmul(const NDArray& a, const NDArray& b, bool transpose_a = false, bool transpose_b = false);
// a[i] * b[j] of two vectors.
NDArray outer(const NDArray& a, const NDArray& b);
// Sums of products by the names of axes, for instance einsum("bij,bjk->bik", {a, b}): a letter in two operands is the
// same position in both, one that is not in the result is summed over. Operands are multiplied from left to right. No
// letter may occur twice in one operand. An ellipsis stands for axes that have no letters, which broadcast from the
// last on; without one in the result they are summed over.
NDArray einsum(const std::string& equation, const std::vector<NDArray>& operands);

}  // namespace paceline
