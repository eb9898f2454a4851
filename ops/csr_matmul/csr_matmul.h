#pragma once
// Products of a sparse matrix and a dense one.

#include <paceline/op.h>

namespace paceline {

// A matrix by rows: the elements of row i are values[starts[i]] to values[starts[i + 1] - 1], in the columns of the
// same places. Elements of one place add up; the others are 0.
struct Csr {
  NDArray starts;   // int64 (rows + 1), from 0, never falling
  NDArray columns;  // int64 (elements)
  NDArray values;   // floating (elements)
  Shape shape;      // (rows, columns)
};

struct CsrMatmulAttributes {
  Shape shape = {};
  bool transpose = false;
};

// a b, or the transpose of a times b; `b` is (columns, n), or (rows, n), of the type of a's values. Gradients go to the
// values and to b. float16 and bfloat16 are summed in float32. Throws InvalidArgument "[csr_matmul] ..." on shapes and
// types; starts that fall and columns outside the matrix fail the task.
NDArray csr_matmul(const Csr& a, const NDArray& b, bool transpose = false);

}  // namespace paceline
