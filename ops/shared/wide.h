#pragma once
// float16 and bfloat16 are widened to float32 where an intermediate result would lose digits or leave their range.

#include <paceline/row_sparse.h>

namespace paceline {

inline bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBfloat16; }
inline DType wide_type(DType dtype) { return is_half(dtype) ? DType::kFloat32 : dtype; }

// Not recorded: for the bodies of operators and gradients.
inline NDArray in_type(const NDArray& x, DType dtype) { return x.dtype() == dtype ? x : x.cast(dtype); }
inline NDArray widened(const NDArray& x) { return in_type(x, wide_type(x.dtype())); }

// The dense array that `rows` stands for.
inline NDArray summed_rows(const RowSparse& rows) {
  const NDArray values = widened(rows.values);
  const NDArray table = NDArray::zeros(rows.shape, values.dtype(), values.device(), values.engine());
  scatter_add(table, {rows.rows, values, rows.shape});
  return in_type(table, rows.values.dtype());
}

}  // namespace paceline
