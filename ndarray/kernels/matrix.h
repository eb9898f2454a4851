#pragma once
// How BLAS sees an array of two dimensions, or three (a batch).

#include <paceline/kernel.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace paceline::detail {

struct Matrix {
  std::int64_t batch;
  std::int64_t batch_stride;
  std::int64_t rows;
  std::int64_t columns;
  bool row_major;
  std::int64_t leading;  // distance between rows, or between columns

  friend bool operator==(const Matrix&, const Matrix&) = default;
};

// Of the transposed matrix if `transposed`. Only for what is_matrix_layout() accepts.
inline Matrix matrix_of(const Tensor& tensor, bool transposed) {
  const int d = tensor.shape.ndim();
  const int row = transposed ? d - 1 : d - 2;
  const int column = transposed ? d - 2 : d - 1;
  Matrix m{};
  m.batch = d == 3 ? tensor.shape[0] : 1;
  m.batch_stride = d == 3 ? tensor.strides[0] : 0;
  m.rows = tensor.shape[row];
  m.columns = tensor.shape[column];
  // The stride of a dimension of one element means nothing.
  m.row_major = m.columns == 1 || tensor.strides[column] == 1;
  const std::int64_t least = std::max<std::int64_t>(1, m.row_major ? m.columns : m.rows);
  const bool single = m.row_major ? m.rows == 1 : m.columns == 1;
  m.leading = single ? least : tensor.strides[m.row_major ? row : column];
  return m;
}

inline bool is_matrix_layout(const Tensor& tensor) {
  const Matrix m = matrix_of(tensor, false);
  const int d = tensor.shape.ndim();
  const std::int64_t inner = m.row_major ? m.columns : m.rows;
  const std::int64_t inner_stride = tensor.strides[m.row_major ? d - 1 : d - 2];
  return (inner == 1 || inner_stride == 1) && m.leading >= inner &&
         m.leading < std::numeric_limits<std::int32_t>::max();
}

}  // namespace paceline::detail
