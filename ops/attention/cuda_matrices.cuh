#pragma once
// The operands of attention's CUDA kernels.

#include "attention/cuda_tiles.h"

#include <paceline/detail/elementwise.cuh>

#include <cmath>
#include <limits>

namespace paceline {

// The matrices of an array, one for each place of its leading axes.
struct Matrices {
  void* data;
  int leading;
  std::int64_t sizes[Shape::kMaxDims], strides[Shape::kMaxDims];
  std::int64_t rows, columns, row_step, column_step;
  bool is_bool;
  bool in_vectors;  // are all rows of whole vectors, beginning where those may?

  explicit Matrices(const Tensor& x) : data(x.data), leading(x.shape.ndim() - 2), is_bool(x.dtype == DType::kBool) {
    for (int d = 0; d < leading; ++d) {
      sizes[d] = x.shape[d];
      strides[d] = x.strides[d];
    }
    rows = x.shape[leading];
    columns = x.shape[leading + 1];
    row_step = x.strides[leading];
    column_step = x.strides[leading + 1];
    const auto width = static_cast<std::int64_t>(detail::kAccessBytes / size_of(x.dtype));
    in_vectors = reinterpret_cast<std::uintptr_t>(x.data) % detail::kAccessBytes == 0 && columns % width == 0 &&
                 std::all_of(x.strides.begin(), x.strides.end() - 1, [=](auto step) { return step % width == 0; });
  }
  template <class T>
  __device__ T* of(std::int64_t head) const {
    std::int64_t offset = 0;
    for (int d = leading - 1; d >= 0; --d) {
      offset += head % sizes[d] * strides[d];
      head /= sizes[d];
    }
    return static_cast<T*>(data) + offset;
  }
  template <class T>
  __device__ T& at(T* matrix, std::int64_t row, std::int64_t column) const {
    return matrix[row * row_step + column * column_step];
  }
};

// The operands of the scores.
struct Scores {
  Matrices query, key, mask;
  bool causal, masked;
  double scale;

  // Of a product of query and key rows, of arrays of T; -infinity where the query may not see the key.
  template <class T, class A = T>
  __device__ A of(A product, std::int64_t head, std::int64_t row, std::int64_t column) const {
    constexpr A kBlind = -std::numeric_limits<A>::infinity();
    if (row >= query.rows || column >= key.rows || (causal && column > row)) return kBlind;
    const A score = product * static_cast<A>(scale);
    if (!masked) return score;
    if (mask.is_bool) return mask.at(mask.of<bool>(head), row, column) ? score : kBlind;
    return score + detail::load(mask.at(mask.of<T>(head), row, column));
  }
};

// exp(score - the row's sums), which forward() left.
template <class T>
__device__ T share_of(T score, const T* sums, std::int64_t row) {
  const T top = sums[2 * row];
  return top == -std::numeric_limits<T>::infinity() ? T(0) : std::exp(score - top - sums[2 * row + 1]);
}

inline std::int64_t count_of_matrices(const Shape& shape) {
  std::int64_t count = 1;
  for (int d = 0; d + 2 < shape.ndim(); ++d) count *= shape[d];
  return count;
}

inline Scores scores_of(std::span<const Tensor> in, const AttentionHow& how) {
  return {Matrices(in[0]), Matrices(in[1]), Matrices(in[how.masked ? 3 : 0]), how.causal, how.masked, how.scale};
}

// Blocks of so many rows for each head; the grid's second axis takes no more than 65535 of them.
inline dim3 blocks_of(std::int64_t rows, int of_block, std::int64_t heads) {
  require(heads <= 65535, "[attention] has ", heads, " matrices, expected at most 65535 on a CUDA device");
  return dim3(static_cast<unsigned>((rows + of_block - 1) / of_block), static_cast<unsigned>(heads));
}

}  // namespace paceline
