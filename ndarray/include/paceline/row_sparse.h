#pragma once
// A matrix of which only some rows are stored: gradients of embeddings, pulls of large tables.

#include <paceline/ndarray.h>

namespace paceline {

struct RowSparse {
  NDArray rows;    // int64 (n): row numbers, may repeat in a gradient (repeated rows add up), sorted nowhere assumed
  NDArray values;  // (n, ...): the stored rows
  Shape shape;     // of the whole array; shape[0] counts all rows
};

// A gradient is dense, row-sparse, or absent.
struct Gradient {
  NDArray dense;
  RowSparse sparse;

  Gradient() = default;
  Gradient(NDArray array) : dense(std::move(array)) {}
  Gradient(RowSparse rows) : sparse(std::move(rows)) {}
  bool is_none() const { return dense.is_none() && sparse.values.is_none(); }
  bool is_sparse() const { return !sparse.values.is_none(); }
};

// table[rows[i], :] += values[i, :] for every i, in order; asynchronous. Throws InvalidArgument on shapes; a row number
// outside the table fails the task (on CUDA, that row is left out).
void scatter_add(const NDArray& table, const RowSparse& update);

}  // namespace paceline
