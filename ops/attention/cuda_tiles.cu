// The method of tiles.h with a warp for each row: the block's rows share the tiles of keys and values that it loads, a
// lane has one key of a tile, and the scores are never in memory. Backward, once by rows (the gradients of query and
// mask) and once by keys (those of key and value), so that every sum is one thread's, in order.
#include "attention/cuda_matrices.cuh"
#include "attention/cuda_tensor_tiles.cuh"
#include "shared/fast_math.h"

namespace paceline {

namespace {

constexpr int kWarp = 32;  // keys, or columns, of a tile
constexpr int kRows = 8;   // warps of a block
constexpr unsigned kAllLanes = 0xffffffffu;

template <class T>
__device__ T sum_of_warp(T x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

template <class T>
__device__ T largest_of_warp(T x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, x, distance);
    x = other > x || other != other ? other : x;
  }
  return x;
}

// Tiles of two matrices in shared memory.
template <class T>
struct Shared {
  T left[kRows][kWarp];       // a part of each row of the block
  T right[kWarp][kWarp + 1];  // the same part of the tile's rows; one more, so that lanes meet in no bank
};

// For this thread's row (`first` + threadIdx.y) of a and row (`other` + threadIdx.x) of b: their product over all
// columns. Rows beyond the end count as zeros. All threads of the block must call it.
template <class T>
__device__ T product(Shared<T>& shared, const Matrices& a, const T* left, std::int64_t first, const Matrices& b,
                     const T* right, std::int64_t other) {
  const int lane = threadIdx.x, warp = threadIdx.y;
  T sum = 0;
  for (std::int64_t part = 0; part < a.columns; part += kWarp) {
    const std::int64_t column = part + lane;
    __syncthreads();
    shared.left[warp][lane] = first + warp < a.rows && column < a.columns ? a.at(left, first + warp, column) : T(0);
    for (int row = warp; row < kWarp; row += kRows)
      shared.right[row][lane] = other + row < b.rows && column < b.columns ? b.at(right, other + row, column) : T(0);
    __syncthreads();
    for (int k = 0; k < kWarp; ++k) sum += shared.left[warp][k] * shared.right[lane][k];
  }
  return sum;
}

// to[row][c] += the sum over the 32 lanes of factor times row (other + lane) of b, for the columns c. Each warp has its
// row and its factors; a row beyond the end has none. All threads of the block must call it.
template <class T>
__device__ void add_rows(Shared<T>& shared, T factor, const Matrices& b, const T* right, std::int64_t other,
                         const Matrices& to, T* out, std::int64_t row) {
  const int lane = threadIdx.x, warp = threadIdx.y;
  for (std::int64_t part = 0; part < b.columns; part += kWarp) {
    const std::int64_t column = part + lane;
    __syncthreads();
    for (int i = warp; i < kWarp; i += kRows)
      shared.right[i][lane] = other + i < b.rows && column < b.columns ? b.at(right, other + i, column) : T(0);
    __syncthreads();
    T sum = 0;
    for (int k = 0; k < kWarp; ++k) sum += __shfl_sync(kAllLanes, factor, k) * shared.right[k][lane];
    if (row < to.rows && column < to.columns) to.at(out, row, column) += sum;
  }
}

template <class T>
__global__ void attend_rows(const Scores scores, const Matrices value, const Matrices out, T* sums) {
  __shared__ Shared<T> shared;
  constexpr T kBlind = -std::numeric_limits<T>::infinity();
  const std::int64_t head = blockIdx.y, first = std::int64_t{blockIdx.x} * kRows, row = first + threadIdx.y;
  const T* const query = scores.query.of<T>(head);
  const T* const key = scores.key.of<T>(head);
  const T* const values = value.of<T>(head);
  T* const result = out.of<T>(head);
  for (std::int64_t c = threadIdx.x; row < out.rows && c < out.columns; c += kWarp) out.at(result, row, c) = T(0);
  T top = kBlind, total = 0;
  // All warps of a block make the same number of tiles.
  const std::int64_t keys = scores.causal ? min(scores.key.rows, first + kRows) : scores.key.rows;
  for (std::int64_t column = 0; column < keys; column += kWarp) {
    const T found = product(shared, scores.query, query, first, scores.key, key, column);
    const T score = scores.of<T>(found, head, row, column + threadIdx.x);
    const T before = top;
    top = largest_of_warp(score > top || score != score ? score : top);
    T share = 0;
    if (top != kBlind) {
      const T shrink = fast_exp(before - top);
      share = fast_exp(score - top);
      total = total * shrink + sum_of_warp(share);
      if (shrink != T(1) && column > 0)
        for (std::int64_t c = threadIdx.x; row < out.rows && c < out.columns; c += kWarp)
          out.at(result, row, c) *= shrink;
    }
    add_rows(shared, share, value, values, column, out, result, row);
  }
  if (row >= out.rows) return;
  if (threadIdx.x == 0) {
    sums[2 * (head * out.rows + row)] = top;
    sums[2 * (head * out.rows + row) + 1] = std::log(total);
  }
  if (total == T(0)) return;
  const T scale = T(1) / total;
  for (std::int64_t c = threadIdx.x; c < out.columns; c += kWarp) out.at(result, row, c) *= scale;
}

// What a row's shares times their gradients add up to; then the gradients of the scores, of query and mask.
template <class T>
__global__ void backward_rows(const Scores scores, const Matrices value, const Matrices gradient, const T* sums,
                              T* means, const Matrices query_gradient, const Matrices mask_gradient, bool wants_mask) {
  __shared__ Shared<T> shared;
  const std::int64_t head = blockIdx.y, first = std::int64_t{blockIdx.x} * kRows, row = first + threadIdx.y;
  const bool inside = row < scores.query.rows;
  const T* const query = scores.query.of<T>(head);
  const T* const key = scores.key.of<T>(head);
  const T* const values = value.of<T>(head);
  const T* const dy = gradient.of<T>(head);
  T* const dq = query_gradient.of<T>(head);
  const T* const own_sums = sums + 2 * head * scores.query.rows;
  for (std::int64_t c = threadIdx.x; inside && c < query_gradient.columns; c += kWarp)
    query_gradient.at(dq, row, c) = T(0);
  const std::int64_t keys = scores.causal ? min(scores.key.rows, first + kRows) : scores.key.rows;
  T mean = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (std::int64_t column = 0; column < keys; column += kWarp) {
      const std::int64_t mine = column + threadIdx.x;
      const T found = product(shared, scores.query, query, first, scores.key, key, column);
      const T share = inside ? share_of(scores.of<T>(found, head, row, mine), own_sums, row) : T(0);
      const T slope = product(shared, gradient, dy, first, value, values, column);
      if (pass == 0) {
        mean += sum_of_warp(share * slope);
        continue;
      }
      const T change = share * (slope - mean);
      if (wants_mask && inside && mine < scores.key.rows)
        mask_gradient.at(mask_gradient.of<T>(head), row, mine) = change;
      add_rows(shared, change * static_cast<T>(scores.scale), scores.key, key, column, query_gradient, dq, row);
    }
  }
  if (inside && threadIdx.x == 0) means[head * scores.query.rows + row] = mean;
  // Keys that no row of the block sees.
  if (wants_mask && inside)
    for (std::int64_t c = (keys + kWarp - 1) / kWarp * kWarp + threadIdx.x; c < scores.key.rows; c += kWarp)
      mask_gradient.at(mask_gradient.of<T>(head), row, c) = T(0);
}

// A warp for each key, a lane for each row of a tile of queries.
template <class T>
__global__ void backward_keys(const Scores scores, const Matrices value, const Matrices gradient, const T* sums,
                              const T* means, const Matrices key_gradient, const Matrices value_gradient) {
  __shared__ Shared<T> shared;
  const std::int64_t head = blockIdx.y, first = std::int64_t{blockIdx.x} * kRows, column = first + threadIdx.y;
  const T* const query = scores.query.of<T>(head);
  const T* const key = scores.key.of<T>(head);
  const T* const values = value.of<T>(head);
  const T* const dy = gradient.of<T>(head);
  T* const dk = key_gradient.of<T>(head);
  T* const dv = value_gradient.of<T>(head);
  const T* const own_sums = sums + 2 * head * scores.query.rows;
  const bool inside = column < scores.key.rows;
  for (std::int64_t c = threadIdx.x; inside && c < key_gradient.columns; c += kWarp)
    key_gradient.at(dk, column, c) = T(0);
  for (std::int64_t c = threadIdx.x; inside && c < value_gradient.columns; c += kWarp)
    value_gradient.at(dv, column, c) = T(0);
  const std::int64_t begin = scores.causal ? first / kWarp * kWarp : 0;
  for (std::int64_t row = begin; row < scores.query.rows; row += kWarp) {
    const std::int64_t mine = row + threadIdx.x;
    const bool exists = inside && mine < scores.query.rows;
    const T found = product(shared, scores.key, key, first, scores.query, query, row);
    const T share = exists ? share_of(scores.of<T>(found, head, mine, column), own_sums, mine) : T(0);
    const T slope = product(shared, value, values, first, gradient, dy, row);
    const T change = exists ? share * (slope - means[head * scores.query.rows + mine]) : T(0);
    add_rows(shared, share, gradient, dy, row, value_gradient, dv, column);
    add_rows(shared, change * static_cast<T>(scores.scale), scores.query, query, row, key_gradient, dk, column);
  }
}

template <class Body>
void visit(DType dtype, const Body& body) {
  dtype == DType::kFloat32 ? body(TypeTag<float>{}) : body(TypeTag<double>{});
}

constexpr dim3 kBlock(kWarp, kRows);

// Inputs: query, key, value, and the mask where there is one. Outputs: out, sums.
void forward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const std::int64_t heads = count_of_matrices(out[0].shape);
  const Matrices results(out[0]);
  if (heads == 0 || results.rows == 0) return;
  const Scores scores = scores_of(in, *static_cast<const AttentionHow*>(attributes));
  const cudaStream_t stream = detail::stream_of(context);
  if (size_of(in[0].dtype) == 2) return attend_on_tensor_cores(scores, Matrices(in[2]), out, stream);
  visit(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    attend_rows<T><<<blocks_of(results.rows, kRows, heads), kBlock, 0, stream>>>(scores, Matrices(in[2]), results,
                                                                                 out[1].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting attention");
}

// Inputs: out, sums, gradient, query, key, value, and the mask where there is one. Outputs: gradients of query, key,
// value, and of the mask where it is wanted. The workspace takes a number for each row.
void backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const std::int64_t heads = count_of_matrices(in[0].shape);
  if (heads == 0) return;
  const Scores scores = scores_of(in.subspan(3), *static_cast<const AttentionHow*>(attributes));
  const Matrices value(in[5]), gradient(in[2]), dq(out[0]), dk(out[1]), dv(out[2]), dm(out[out.size() > 3 ? 3 : 0]);
  const cudaStream_t stream = detail::stream_of(context);
  if (size_of(in[0].dtype) == 2)
    return attend_backward_on_tensor_cores(scores, in, out, static_cast<float*>(context.workspace), stream);
  visit(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const means = static_cast<T*>(context.workspace);
    const T* const sums = in[1].as<const T>();
    if (scores.query.rows > 0)
      backward_rows<T><<<blocks_of(scores.query.rows, kRows, heads), kBlock, 0, stream>>>(
          scores, value, gradient, sums, means, dq, dm, out.size() > 3);
    if (scores.key.rows > 0)
      backward_keys<T><<<blocks_of(scores.key.rows, kRows, heads), kBlock, 0, stream>>>(scores, value, gradient, sums,
                                                                                        means, dk, dv);
  });
  detail::check_cuda(cudaGetLastError(), "starting the gradient of attention");
}

}  // namespace

KernelFunction attend_cuda() { return forward_cuda; }
KernelFunction attend_backward_cuda() { return backward_cuda; }
bool runs_on_tensor_cores(DType dtype, Device device, std::int64_t columns) {
  return size_of(dtype) == 2 && device.kind == DeviceKind::kCuda && columns <= kMostColumns;
}

}  // namespace paceline
