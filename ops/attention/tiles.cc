#include "attention/tiles.h"

#include "attention/cuda_tiles.h"
#include "shared/fast_math.h"
#include "shared/lanes.h"
#include "shared/vector_map.h"

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

namespace paceline {
namespace {

constexpr std::int64_t kRows = 64, kColumns = 128;  // of a tile, which fits into a core's own cache

using Attributes = AttentionHow;

// The matrices of an array, one for each place of its leading axes. The elements of a row are neighbours, except in a
// mask.
template <class T>
class Matrices {
 public:
  explicit Matrices(const Tensor& x) : data_(x.as<T>()), shape_(x.shape), strides_(x.strides) {}

  T* operator[](std::int64_t number) const {
    std::int64_t offset = 0;
    for (int d = shape_.ndim() - 3; d >= 0; --d) {
      offset += number % shape_[d] * strides_[d];
      number /= shape_[d];
    }
    return data_ + offset;
  }
  std::int64_t rows() const { return shape_[shape_.ndim() - 2]; }
  std::int64_t columns() const { return shape_[shape_.ndim() - 1]; }
  std::int64_t row_step() const {
    return rows() > 1 ? strides_[shape_.ndim() - 2] : std::max<std::int64_t>(1, columns());
  }
  std::int64_t column_step() const { return strides_[shape_.ndim() - 1]; }

 private:
  T* data_;
  Shape shape_;
  Strides strides_;
};

// A part of a matrix, row-major.
template <class T>
struct Block {
  T* data;
  std::int64_t rows, columns, step;
  T* row(std::int64_t i) const { return data + i * step; }
};

template <class T>
Block<T> rows_of(const Matrices<T>& x, std::int64_t number, std::int64_t first, std::int64_t rows) {
  return {x[number] + first * x.row_step(), rows, x.columns(), x.row_step()};
}

// c = alpha op(a) op(b) + beta c
template <class T>
void multiply(T alpha, const Block<const T>& a, bool transpose_a, const Block<const T>& b, bool transpose_b, T beta,
              const Block<T>& c) {
  const auto inner = static_cast<int>(transpose_a ? a.rows : a.columns);
  const auto ta = transpose_a ? CblasTrans : CblasNoTrans, tb = transpose_b ? CblasTrans : CblasNoTrans;
  const auto m = static_cast<int>(c.rows), n = static_cast<int>(c.columns);
  const auto lda = static_cast<int>(a.step), ldb = static_cast<int>(b.step), ldc = static_cast<int>(c.step);
  if (m == 0 || n == 0) return;
  if constexpr (std::is_same_v<T, float>)
    cblas_sgemm(CblasRowMajor, ta, tb, m, n, inner, alpha, a.data, lda, b.data, ldb, beta, c.data, ldc);
  else
    cblas_dgemm(CblasRowMajor, ta, tb, m, n, inner, alpha, a.data, lda, b.data, ldb, beta, c.data, ldc);
}

template <class T>
Block<T> part(const Block<T>& x, std::int64_t first, std::int64_t rows) {
  return {x.row(first), rows, x.columns, x.step};
}

template <class T>
Block<const T> constant(const Block<T>& x) {
  return {x.data, x.rows, x.columns, x.step};
}

// Replaces each element of `row` by exp(element - top - log_sum), and returns the sum of the results.
template <class T>
T exponentials(T* row, std::int64_t count, T top, T log_sum) {
  T sum;
  vector_code([&]() PACELINE_INLINE {
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) row[i] = fast_exp(row[i] - top - log_sum);
    sum = sum_lanes<T>(count, [row](std::int64_t i) { return row[i]; });
  });
  return sum;
}

template <class T>
T largest(const T* row, std::int64_t count, T start) {
  vector_code([&]() PACELINE_INLINE {
    start = fold_lanes(
        count, start, [row](std::int64_t i) { return row[i]; }, [](T a, T b) { return b > a || b != b ? b : a; });
  });
  return start;
}

template <class T>
constexpr T kBlind = -std::numeric_limits<T>::infinity();

// What forward and backward share: the operands, and the scores of a tile.
template <class T>
struct Heads {
  const Attributes how;
  const Matrices<const T> query, key, value;
  const Tensor* const mask;

  Heads(std::span<const Tensor> in, const Attributes& attributes)
      : how(attributes), query(in[0]), key(in[1]), value(in[2]), mask(how.masked ? &in[3] : nullptr) {}

  T scale() const { return static_cast<T>(how.scale); }
  // Rows before `last` see no key from the returned one on.
  std::int64_t keys_of(std::int64_t last) const { return how.causal ? std::min(key.rows(), last) : key.rows(); }
  // No row before the returned one sees a key from `first` on.
  std::int64_t rows_from(std::int64_t first) const { return how.causal ? first / kRows * kRows : 0; }

  // How many of `columns` keys from `column` on a row sees.
  std::int64_t seen(std::int64_t row, std::int64_t column, std::int64_t columns) const {
    return how.causal ? std::clamp<std::int64_t>(row + 1 - column, 0, columns) : columns;
  }

  // Computes the scores of a tile that begins at `row` and `column`. Scores of keys that a row does not see (seen())
  // mean nothing.
  void scores(std::int64_t head, std::int64_t row, std::int64_t column, const Block<T>& out) const {
    multiply<T>(scale(), rows_of(query, head, row, out.rows), false, rows_of(key, head, column, out.columns), true,
                T(0), out);
    if (mask && mask->dtype == DType::kBool)
      add_mask<bool>(head, row, column, out, [](T score, bool seen) { return seen ? score : kBlind<T>; });
    else if (mask)
      add_mask<T>(head, row, column, out, [](T score, T added) { return score + added; });
  }

 private:
  template <class M, class Combine>
  void add_mask(std::int64_t head, std::int64_t row, std::int64_t column, const Block<T>& out,
                const Combine& combine) const {
    const Matrices<const M> matrices(*mask);
    const M* const first = matrices[head] + row * matrices.row_step() + column * matrices.column_step();
    for (std::int64_t i = 0; i < out.rows; ++i)
      for (std::int64_t j = 0; j < out.columns; ++j)
        out.row(i)[j] = combine(out.row(i)[j], first[i * matrices.row_step() + j * matrices.column_step()]);
  }
};

// Computes some rows of one head, from row `first` on. `out` and `sums` begin with that row.
template <class T>
void attend_rows(const Heads<T>& heads, std::int64_t head, std::int64_t first, const Block<T>& out, T* sums) {
  alignas(64) T scores[kRows * kColumns];
  T top[kRows], total[kRows];
  std::fill_n(top, out.rows, kBlind<T>);
  std::fill_n(total, out.rows, T(0));
  for (std::int64_t i = 0; i < out.rows; ++i) std::fill_n(out.row(i), out.columns, T(0));
  const std::int64_t keys = heads.keys_of(first + out.rows);
  for (std::int64_t column = 0; column < keys; column += kColumns) {
    const Block<T> tile{scores, out.rows, std::min(kColumns, keys - column), kColumns};
    heads.scores(head, first, column, tile);
    for (std::int64_t i = 0; i < tile.rows; ++i) {
      T* const row = tile.row(i);
      const std::int64_t seen = heads.seen(first + i, column, tile.columns);
      std::fill(row + seen, row + tile.columns, T(0));
      const T before = top[i];
      top[i] = largest(row, seen, before);
      if (top[i] == kBlind<T>) {
        std::fill_n(row, seen, T(0));
        continue;
      }
      const T shrink = fast_exp(before - top[i]);
      total[i] = total[i] * shrink + exponentials(row, seen, top[i], T(0));
      if (shrink != T(1) && column > 0)
        for (std::int64_t j = 0; j < out.columns; ++j) out.row(i)[j] *= shrink;
    }
    multiply<T>(T(1), constant(tile), false, rows_of(heads.value, head, column, tile.columns), false, T(1), out);
  }
  for (std::int64_t i = 0; i < out.rows; ++i) {
    sums[2 * i] = top[i];
    sums[2 * i + 1] = std::log(total[i]);
    if (total[i] == T(0)) continue;
    const T share = T(1) / total[i];
    for (std::int64_t j = 0; j < out.columns; ++j) out.row(i)[j] *= share;
  }
}

// The gradients of one head. Those of query, key and value are zeros at first. That of the mask has no data where
// nobody wants it.
template <class T>
struct HeadGradients {
  Block<T> query, key, value, mask;
};

template <class T>
void attend_backward_head(const Heads<T>& heads, std::int64_t head, const Block<const T>& out, const T* sums,
                          const Block<const T>& gradient, const HeadGradients<T>& to) {
  alignas(64) T scores[kRows * kColumns], shares_gradient[kRows * kColumns];
  for (std::int64_t column = 0; column < to.key.rows; column += kColumns) {
    for (std::int64_t row = heads.rows_from(column); row < out.rows; row += kRows) {
      const std::int64_t rows = std::min(kRows, out.rows - row);
      const std::int64_t columns = std::min(kColumns, heads.keys_of(row + rows) - column);
      const Block<const T> key = rows_of(heads.key, head, column, columns);
      const Block<const T> value = rows_of(heads.value, head, column, columns);
      const Block<T> share{scores, rows, columns, kColumns}, change{shares_gradient, rows, columns, kColumns};
      const Block<const T> dy = part(gradient, row, rows);
      heads.scores(head, row, column, share);
      for (std::int64_t i = 0; i < rows; ++i) {
        const T top = sums[2 * (row + i)], log_sum = sums[2 * (row + i) + 1];
        const std::int64_t seen = top == kBlind<T> ? 0 : heads.seen(row + i, column, columns);
        exponentials(share.row(i), seen, top, log_sum);
        std::fill(share.row(i) + seen, share.row(i) + columns, T(0));
      }
      multiply<T>(T(1), constant(share), true, dy, false, T(1), part(to.value, column, columns));
      multiply<T>(T(1), dy, false, value, true, T(0), change);
      for (std::int64_t i = 0; i < rows; ++i) {
        const T *y = out.row(row + i), *g = dy.row(i), *p = share.row(i);
        T* const d = change.row(i);
        // Both sums are the same but for rounding. The first needs a tile that has all keys. It gives exact zeros to a
        // row that sees one key.
        const bool all = columns == heads.keys_of(row + rows);
        const T mean = all ? sum_lanes<T>(columns, [=](std::int64_t j) { return p[j] * d[j]; })
                           : sum_lanes<T>(out.columns, [=](std::int64_t j) { return y[j] * g[j]; });
#pragma omp simd
        for (std::int64_t j = 0; j < columns; ++j) d[j] = p[j] * (d[j] - mean);
        if (to.mask.data) std::copy_n(d, columns, to.mask.row(row + i) + column);
      }
      multiply<T>(heads.scale(), constant(change), false, key, false, T(1), part(to.query, row, rows));
      multiply<T>(heads.scale(), constant(change), true, rows_of(heads.query, head, row, rows), false, T(1),
                  part(to.key, column, columns));
    }
  }
}

// Distributes `count` pieces of work over the team. Each piece takes about `operations` operations, on one thread.
template <class Body>
void share_out(std::int64_t count, double operations, const Body& body) {
  constexpr double kWorthAThread = 2e6;
  const auto smallest = static_cast<std::int64_t>(kWorthAThread / std::max(operations, 1.0));
  detail::parallel_ranges(count, std::clamp<std::int64_t>(smallest, 1, std::max<std::int64_t>(count, 1)),
                          [&](std::int64_t begin, std::int64_t end) {
                            const TeamScope alone(1);
                            for (std::int64_t i = begin; i < end; ++i) body(i);
                          });
}

template <class T>
double operations_of(const Heads<T>& heads, std::int64_t rows) {
  return 2.0 * static_cast<double>(rows * heads.key.rows() * (heads.key.columns() + heads.value.columns() + 8));
}

std::int64_t count_of_matrices(const Shape& shape) {
  std::int64_t count = 1;
  for (int d = 0; d + 2 < shape.ndim(); ++d) count *= shape[d];
  return count;
}

template <class Body>
void visit(DType dtype, const Body& body) {
  if (dtype == DType::kFloat32)
    body(TypeTag<float>{});
  else
    body(TypeTag<double>{});
}

// Inputs: query, key, value, and the mask where there is one. Outputs: out, sums.
void forward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  visit(in[0].dtype, [&]<class T>(TypeTag<T>) {
    const Heads<T> heads(in, *static_cast<const Attributes*>(attributes));
    const Matrices<T> results(out[0]);
    const std::int64_t rows = results.rows(), parts = (rows + kRows - 1) / kRows;
    share_out(count_of_matrices(out[0].shape) * parts, operations_of(heads, std::min(rows, kRows)),
              [&](std::int64_t i) {
                const std::int64_t head = i / parts, first = i % parts * kRows;
                attend_rows(heads, head, first, rows_of(results, head, first, std::min(kRows, rows - first)),
                            out[1].as<T>() + 2 * (head * rows + first));
              });
  });
}

// Inputs: out, sums, gradient, query, key, value, and the mask where there is one. Outputs: gradients of query, key,
// value, and of the mask where it is wanted.
void backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  visit(in[0].dtype, [&]<class T>(TypeTag<T>) {
    const Heads<T> heads(in.subspan(3), *static_cast<const Attributes*>(attributes));
    const Matrices<const T> results(in[0]), gradients(in[2]);
    const std::int64_t rows = results.rows();
    const auto whole = [](const auto& x, std::int64_t head) { return rows_of(x, head, 0, x.rows()); };
    const auto cleared = [&](const Tensor& x, std::int64_t head) {
      const Block<T> block = whole(Matrices<T>(x), head);
      for (std::int64_t i = 0; i < block.rows; ++i) std::fill_n(block.row(i), block.columns, T(0));
      return block;
    };
    share_out(count_of_matrices(in[0].shape), 2.5 * operations_of(heads, rows), [&](std::int64_t head) {
      attend_backward_head(heads, head, whole(results, head), in[1].as<const T>() + 2 * head * rows,
                           whole(gradients, head),
                           {cleared(out[0], head), cleared(out[1], head), cleared(out[2], head),
                            out.size() > 3 ? cleared(out[3], head) : Block<T>{}});
    });
  });
}

std::vector<NDArray> inputs_of(const AttentionArrays& arrays) {
  std::vector<NDArray> inputs{arrays.query, arrays.key, arrays.value};
  if (!arrays.mask.is_none()) inputs.push_back(arrays.mask);
  return inputs;
}

std::shared_ptr<const Attributes> attributes_of(const AttentionArrays& arrays, bool causal, double scale) {
  return std::make_shared<const Attributes>(Attributes{causal, !arrays.mask.is_none(), scale});
}

}  // namespace

bool has_plain_rows(const NDArray& x) {
  const std::int64_t rows = x.size(-2), columns = x.size(-1), step = x.strides()[x.ndim() - 2];
  return (columns <= 1 || x.strides()[x.ndim() - 1] == 1) &&
         (rows <= 1 || (step >= std::max<std::int64_t>(1, columns) && step <= std::numeric_limits<int>::max()));
}

void attend(const AttentionArrays& arrays, bool causal, double scale, const NDArray& out, const NDArray& sums) {
  launch({"attention", forward_cpu, attend_cuda()}, inputs_of(arrays), std::array{out, sums},
         attributes_of(arrays, causal, scale));
}

void attend_backward(const AttentionArrays& arrays, bool causal, double scale, const NDArray& out, const NDArray& sums,
                     const NDArray& gradient, const AttentionArrays& gradients) {
  std::vector<NDArray> inputs = inputs_of(arrays);
  inputs.insert(inputs.begin(), {out, sums, gradient});
  const std::size_t row_bytes = out.device().kind == DeviceKind::kCuda ? sums.bytes() / 2 : 0;
  launch({"attention_backward", backward_cpu, attend_backward_cuda()}, inputs, inputs_of(gradients),
         attributes_of(arrays, causal, scale), {.workspace_bytes = row_bytes});
}

}  // namespace paceline
