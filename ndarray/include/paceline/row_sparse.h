#pragma once
// Arrays of which only some rows are stored: gradients of embeddings, pulls of large tables.

#include <paceline/ndarray.h>

namespace paceline {

// Some rows of an array. A row that is stored twice counts as the sum of both.
struct RowSparse {
  NDArray rows;    // int64 (n): row numbers, in any order
  NDArray values;  // (n, ...): the stored rows
  Shape shape;     // of the whole array; shape[0] counts all rows
};

// A gradient is dense, row-sparse, or absent.
struct Gradient {
  NDArray dense;     // none unless it is dense
  RowSparse sparse;  // of none unless it is row-sparse

  Gradient() = default;
  // A gradient of that form.
  Gradient(NDArray array) : dense(std::move(array)) {}
  Gradient(RowSparse rows) : sparse(std::move(rows)) {}
  // Is it absent? Is it row-sparse?
  bool is_none() const { return dense.is_none() && sparse.values.is_none(); }
  bool is_sparse() const { return !sparse.values.is_none(); }
};

// table[rows[i], :] += values[i, :] for every i, in order. Asynchronous. Throws InvalidArgument on shapes. A row number
// outside the table fails the task; on CUDA devices that row is left out.
void scatter_add(const NDArray& table, const RowSparse& update);

}  // namespace paceline
