#pragma once
// Products of a sparse matrix and a dense one.

#include <paceline/op.h>

namespace paceline {

// A sparse matrix by rows: the elements of row i are values[starts[i]] to values[starts[i + 1] - 1]. The column of
// values[k] is columns[k]. Elements of one row and column add up. The matrix is 0 where it has no element.
struct Csr {
  NDArray starts;   // int64 (rows + 1), from 0 to the number of elements, never falling
  NDArray columns;  // int64 (elements)
  NDArray values;   // floating (elements)
  Shape shape;      // (rows, columns)
};

// The arguments of csr_matmul().
struct CsrMatmulAttributes {
  Shape shape = {};        // of the sparse matrix
  bool transpose = false;  // multiplies by its transpose
};

// The product of `a` and a matrix b (columns, n), or with `transpose` of the transpose of `a` and b (rows, n). b has
// the type of a's values. Gradients go to the values and to b. float16 and bfloat16 are summed in float32. Throws
// InvalidArgument "[csr_matmul] ..." for wrong shapes and types. Starts that fall, starts with wrong ends, and columns
// outside the matrix fail the task.
NDArray csr_matmul(const Csr& a, const NDArray& b, bool transpose = false);

}  // namespace paceline
