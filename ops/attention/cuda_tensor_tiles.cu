// Attention of float16 and bfloat16 as in cuda_tiles.cu, the products on tensor cores: a warp has 16 rows (or, for the
// gradients of key and value, 16 keys), whose operands and sums stay in its registers.
#include "attention/cuda_tensor_tiles.cuh"
#include "shared/tensor_cores.cuh"

namespace paceline {

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kPart = 16;              // rows of a warp, and the depth of a product
constexpr int kTile = kWarps * kPart;  // rows of a block; rows of what it multiplies with
constexpr unsigned kAllLanes = 0xffffffffu;

// What this lane holds of sums (tensor_cores.cuh): element i is at (row(i), column(i)).
__device__ inline int lane() { return threadIdx.x % kWarp; }
__device__ inline int warp_row(int i) { return static_cast<int>(threadIdx.x) / kWarp * kPart + lane() / 4 + i / 2 * 8; }
__device__ inline int lane_column(int i) { return lane() % 4 * 2 + i % 2; }

template <class T>
__device__ inline unsigned pair_at(const T* at) {
  return std::bit_cast<unsigned>(detail::read_vector<2>(at));
}

template <class T>
__device__ inline unsigned pair_of(float first, float second) {
  return detail::stored<T>(first).bits | static_cast<unsigned>(detail::stored<T>(second).bits) << 16;
}

// Rows in shared memory, of kDim columns; zeros where the matrix has none. Eight more, so that lanes meet in no bank.
template <class T, int kDim>
struct alignas(16) Rows {
  T at[kTile][kDim + 8];

  __device__ void load(const Matrices& matrix, const T* from, std::int64_t first) {
    constexpr int kWidth = detail::kVectorWidth<T>, kVectors = kDim / kWidth;
    for (int i = threadIdx.x; i < kTile * kVectors; i += blockDim.x) {
      const int row = i / kVectors, column = i % kVectors * kWidth;
      const T* const place = from + (first + row) * matrix.row_step + column;
      detail::Vector<T, kWidth> values{};
      if (first + row < matrix.rows && column < matrix.columns) {
        if (matrix.in_vectors)
          values = detail::read_vector<kWidth>(place);
        else
          for (int k = 0; k < kWidth && column + k < matrix.columns; ++k) values.at[k] = place[k];
      }
      detail::write_vector(&at[row][column], values);
    }
  }
};

// The warp's rows of `rows`, as left operands.
template <class T, int kDim>
struct OwnRows {
  unsigned parts[kDim / kPart][4];

  __device__ void take(const Rows<T, kDim>& rows) {
#pragma unroll
    for (int p = 0; p < kDim / kPart; ++p)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        parts[p][i] = pair_at(&rows.at[warp_row(i % 2 * 2)][p * kPart + lane_column(0) + i / 2 * 8]);
  }
};

// sums (16 x 16) = own rows times the rows first ... first + 15 of `rows`, transposed.
template <class T, int kDim>
__device__ void multiply(float (&sums)[2][4], const OwnRows<T, kDim>& own, const Rows<T, kDim>& rows, int first) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    for (float& sum : sums[n]) sum = 0;
    const T* const row = &rows.at[first + 8 * n + lane() / 4][lane_column(0)];
#pragma unroll
    for (int p = 0; p < kDim / kPart; ++p) {
      const unsigned right[2] = {pair_at(row + p * kPart), pair_at(row + p * kPart + 8)};
      multiply_add<T>(sums[n], own.parts[p], right);
    }
  }
}

// The sums of a warp's 16 rows by kDim columns.
template <class T, int kDim>
struct Sums {
  float of[kDim / 8][4] = {};

  // += factors (16 x 16, as sums are) times the rows first ... first + 15 of `rows`.
  __device__ void add(const float (&factors)[2][4], const Rows<T, kDim>& rows, int first) {
    const unsigned left[4] = {pair_of<T>(factors[0][0], factors[0][1]), pair_of<T>(factors[0][2], factors[0][3]),
                              pair_of<T>(factors[1][0], factors[1][1]), pair_of<T>(factors[1][2], factors[1][3])};
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      unsigned right[2];
      read_rows(right, &rows.at[first + lane() % kPart][8 * n]);
      multiply_add<T>(of[n], left, right);
    }
  }
  // Row r of the block times scale[0], r + 8 times scale[1].
  __device__ void multiply_by(const float (&scale)[2]) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) of[n][i] *= scale[i / 2];
  }
  __device__ void write(const Matrices& to, T* out, std::int64_t first) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t row = first + warp_row(i), column = 8 * n + lane_column(i);
        if (row < to.rows && column < to.columns) to.at(out, row, column) = detail::stored<T>(of[n][i]);
      }
  }
};

// Of the four lanes that share rows.
__device__ inline float sum_of_row(float x) {
  for (int distance = 1; distance < 4; distance *= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}
__device__ inline float larger(float a, float b) { return b > a || b != b ? b : a; }

template <int kDim, class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    attend_rows(const Scores scores, const Matrices value, const Matrices out, float* sums) {
  __shared__ Rows<T, kDim> keys;
  __shared__ Rows<T, kDim> values;
  constexpr float kBlind = -std::numeric_limits<float>::infinity();
  const std::int64_t head = blockIdx.y, first = std::int64_t{blockIdx.x} * kTile;
  OwnRows<T, kDim> query;
  keys.load(scores.query, scores.query.of<T>(head), first);
  __syncthreads();
  query.take(keys);
  Sums<T, kDim> results;
  float top[2] = {kBlind, kBlind}, total[2] = {0, 0};
  const std::int64_t end = scores.causal ? min(scores.key.rows, first + kTile) : scores.key.rows;
  for (std::int64_t column = 0; column < end; column += kTile) {
    __syncthreads();
    keys.load(scores.key, scores.key.of<T>(head), column);
    values.load(value, value.of<T>(head), column);
    __syncthreads();
    float shares[kTile / kPart][2][4];
    float highest[2] = {top[0], top[1]};
#pragma unroll
    for (int part = 0; part < kTile / kPart; ++part) {
      multiply(shares[part], query, keys, part * kPart);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& score = shares[part][n][i];
          score = scores.of<T>(score, head, first + warp_row(i), column + part * kPart + 8 * n + lane_column(i));
          highest[i / 2] = larger(highest[i / 2], score);
        }
    }
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      for (int distance = 1; distance < 4; distance *= 2)
        highest[half] = larger(highest[half], __shfl_xor_sync(kAllLanes, highest[half], distance));
      shrink[half] = highest[half] == kBlind ? 1.0f : std::exp(top[half] - highest[half]);
      top[half] = highest[half];
      total[half] *= shrink[half];
    }
    results.multiply_by(shrink);
#pragma unroll
    for (int part = 0; part < kTile / kPart; ++part) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& share = shares[part][n][i];
          share = top[i / 2] == kBlind ? 0.0f : std::exp(share - top[i / 2]);
          total[i / 2] += share;
        }
      results.add(shares[part], values, part * kPart);
    }
  }
  float scale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] = sum_of_row(total[half]);
    scale[half] = total[half] == 0 ? 0.0f : 1 / total[half];
    const std::int64_t row = first + warp_row(2 * half);
    if (lane() % 4 > 0 || row >= out.rows) continue;
    sums[2 * (head * out.rows + row)] = top[half];
    sums[2 * (head * out.rows + row) + 1] = std::log(total[half]);
  }
  results.multiply_by(scale);
  results.write(out, out.of<T>(head), first);
}

// What each row's shares times their gradients add up to: the result times its gradient. A warp for each row.
template <class T>
__global__ void means_of_rows(std::int64_t heads, const Matrices out, const Matrices gradient, float* means) {
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; i < heads * out.rows; i += step) {
    const std::int64_t head = i / out.rows, row = i % out.rows;
    const T* const y = out.of<T>(head);
    const T* const dy = gradient.of<T>(head);
    float sum = 0;
    for (std::int64_t c = lane(); c < out.columns; c += kWarp)
      sum += detail::load(out.at(y, row, c)) * detail::load(gradient.at(dy, row, c));
    for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
    if (lane() == 0) means[i] = sum;
  }
}

// By rows: the gradients of query and mask; by keys: those of key and value. The block's own rows, or keys, meet all of
// the others in tiles.
template <bool kByKeys, int kDim, class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    backward(const Scores scores, const Matrices value, const Matrices gradient, const float* sums, const float* means,
             const Matrices own_gradient, const Matrices beside_gradient, bool wants_mask) {
  __shared__ Rows<T, kDim> products;
  __shared__ Rows<T, kDim> besides;
  const std::int64_t head = blockIdx.y, first = std::int64_t{blockIdx.x} * kTile, rows = scores.query.rows;
  const float* const own_sums = sums + 2 * head * rows;
  // What makes the scores, and what lies beside it and makes the shares' gradients.
  const Matrices own = kByKeys ? scores.key : scores.query, other = kByKeys ? scores.query : scores.key;
  const Matrices beside_own = kByKeys ? value : gradient, beside_other = kByKeys ? gradient : value;
  OwnRows<T, kDim> of_own, of_beside;
  products.load(own, own.of<T>(head), first);
  besides.load(beside_own, beside_own.of<T>(head), first);
  __syncthreads();
  of_own.take(products);
  of_beside.take(besides);
  Sums<T, kDim> result, result_beside;
  // The gradients of a mask are written everywhere.
  const bool sees_some = scores.causal && !wants_mask;
  const std::int64_t begin = kByKeys && sees_some ? first : 0;
  const std::int64_t end = !kByKeys && sees_some ? min(other.rows, first + kTile) : other.rows;
  for (std::int64_t at = begin; at < end; at += kTile) {
    __syncthreads();
    products.load(other, other.of<T>(head), at);
    besides.load(beside_other, beside_other.of<T>(head), at);
    __syncthreads();
    for (int part = 0; part < kTile; part += kPart) {
      float shares[2][4], changes[2][4];
      multiply(shares, of_own, products, part);
      multiply(changes, of_beside, besides, part);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::int64_t mine = first + warp_row(i), met = at + part + 8 * n + lane_column(i);
          const std::int64_t row = kByKeys ? met : mine, key = kByKeys ? mine : met;
          const bool inside = row < rows && key < scores.key.rows;
          float &share = shares[n][i], &change = changes[n][i];
          share = inside ? share_of(scores.of<T>(share, head, row, key), own_sums, row) : 0.0f;
          change = inside ? share * (change - means[head * rows + row]) : 0.0f;
          if (!kByKeys && wants_mask && inside)
            beside_gradient.at(beside_gradient.of<T>(head), row, key) = detail::stored<T>(change);
        }
      if constexpr (kByKeys) result_beside.add(shares, besides, part);
      result.add(changes, products, part);
    }
  }
  // Not before: scaled changes are small numbers, which float16 has few of.
  const float scale = static_cast<float>(scores.scale);
  result.multiply_by({scale, scale});
  result.write(own_gradient, own_gradient.of<T>(head), first);
  if constexpr (kByKeys) result_beside.write(beside_gradient, beside_gradient.of<T>(head), first);
}

constexpr dim3 kBlock(kWarps* kWarp);

// Calls body(TypeTag<T>, Columns<kDim>) with room for so many columns.
template <int kDim>
using Columns = std::integral_constant<int, kDim>;
template <class Body>
void visit(DType dtype, std::int64_t columns, const Body& body) {
  const auto of_type = [&](auto tag) { columns <= 64 ? body(tag, Columns<64>()) : body(tag, Columns<kMostColumns>()); };
  dtype == DType::kFloat16 ? of_type(TypeTag<float16>()) : of_type(TypeTag<bfloat16>());
}

}  // namespace

void attend_on_tensor_cores(const Scores& scores, const Matrices& value, std::span<const Tensor> out,
                            cudaStream_t stream) {
  const Matrices results(out[0]);
  const dim3 blocks = blocks_of(results.rows, kTile, count_of_matrices(out[0].shape));
  visit(out[0].dtype, std::max(scores.query.columns, value.columns), [&]<class T, int kDim>(TypeTag<T>, Columns<kDim>) {
    attend_rows<kDim, T><<<blocks, kBlock, 0, stream>>>(scores, value, results, out[1].as<float>());
  });
  detail::check_cuda(cudaGetLastError(), "starting attention");
}

void attend_backward_on_tensor_cores(const Scores& scores, std::span<const Tensor> in, std::span<const Tensor> out,
                                     float* means, cudaStream_t stream) {
  const std::int64_t heads = count_of_matrices(in[0].shape);
  const Matrices result(in[0]), gradient(in[2]), value(in[5]), dq(out[0]), dk(out[1]), dv(out[2]),
      dm(out[out.size() > 3 ? 3 : 0]);
  const float* const sums = in[1].as<const float>();
  const std::int64_t rows = scores.query.rows, keys = scores.key.rows;
  visit(in[0].dtype, std::max(scores.query.columns, value.columns), [&]<class T, int kDim>(TypeTag<T>, Columns<kDim>) {
    if (rows > 0) {
      means_of_rows<T><<<detail::grid_for(heads * rows * kWarp), kBlock, 0, stream>>>(heads, result, gradient, means);
      backward<false, kDim, T><<<blocks_of(rows, kTile, heads), kBlock, 0, stream>>>(scores, value, gradient, sums,
                                                                                     means, dq, dm, out.size() > 3);
    }
    if (keys > 0)
      backward<true, kDim, T>
          <<<blocks_of(keys, kTile, heads), kBlock, 0, stream>>>(scores, value, gradient, sums, means, dk, dv, false);
  });
  detail::check_cuda(cudaGetLastError(), "starting the gradient of attention");
}

}  // namespace paceline
