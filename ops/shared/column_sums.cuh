#pragma once
// CUDA kernels that add up the columns of a matrix, two sums for each: chunks of rows first, then their sums. The order
// is always the same.

#include "shared/column_sums.h"
#include "shared/line.cuh"

namespace paceline {

constexpr int kThreadsOfChunk = 256;

// Blocks of (columns / kWidth, rows) threads, and how many of them stand side by side.
template <int kWidth>
dim3 threads_of_columns(std::int64_t columns) {
  unsigned lanes = 1;
  while (lanes < kLanes && lanes * kWidth < columns) lanes *= 2;
  return {lanes, kThreadsOfChunk / lanes};
}
template <int kWidth>
std::int64_t tiles_of_columns(std::int64_t columns, const dim3& threads) {
  return (columns + threads.x * kWidth - 1) / (threads.x * kWidth);
}

// partial[chunk][which][column]. terms(row, column, first, second) adds a row's to the sums of kWidth columns.
template <int kWidth, class A, class Terms>
__global__ void __launch_bounds__(kThreadsOfChunk)
    sum_chunks(std::int64_t rows, std::int64_t columns, std::int64_t rows_of_chunk, const Terms terms,
               double* partial) {
  __shared__ A sums[2][kThreadsOfChunk * kWidth];
  const std::int64_t column = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth;
  const std::int64_t end = min((std::int64_t{blockIdx.y} + 1) * rows_of_chunk, rows);
  A first[kWidth]{}, second[kWidth]{};
  if (column < columns)
#pragma unroll 4
    for (std::int64_t row = blockIdx.y * rows_of_chunk + threadIdx.y; row < end; row += blockDim.y)
      terms(row, column, first, second);
  const unsigned width = blockDim.x * kWidth, mine = threadIdx.y * width + threadIdx.x * kWidth;
  for (int k = 0; k < kWidth; ++k) {
    sums[0][mine + k] = first[k];
    sums[1][mine + k] = second[k];
  }
  __syncthreads();
  for (unsigned i = threadIdx.y * blockDim.x + threadIdx.x; i < 2 * width; i += blockDim.x * blockDim.y) {
    const unsigned which = i / width, at = i % width;
    const std::int64_t of = std::int64_t{blockIdx.x} * width + at;
    if (of >= columns) continue;
    double sum = 0;
    for (unsigned row = 0; row < blockDim.y; ++row) sum += static_cast<double>(sums[which][row * width + at]);
    partial[(std::int64_t{blockIdx.y} * 2 + which) * columns + of] = sum;
  }
}

constexpr int kThreadsOfColumn = 16;

// finish(column, first sum, second sum). Blocks are of kLanes columns: a thread adds every kThreadsOfColumn-th chunk.
template <class Finish>
__global__ void __launch_bounds__(kLanes* kThreadsOfColumn)
    add_chunks(std::int64_t columns, std::int64_t chunks, const double* partial, const Finish finish) {
  __shared__ double sums[2][kThreadsOfColumn][kLanes];
  const std::int64_t column = std::int64_t{blockIdx.x} * kLanes + threadIdx.x;
  double first = 0, second = 0;
  if (column < columns)
#pragma unroll 4
    for (std::int64_t chunk = threadIdx.y; chunk < chunks; chunk += kThreadsOfColumn) {
      first += partial[chunk * 2 * columns + column];
      second += partial[(chunk * 2 + 1) * columns + column];
    }
  sums[0][threadIdx.y][threadIdx.x] = first;
  sums[1][threadIdx.y][threadIdx.x] = second;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int row = 1; row < kThreadsOfColumn; ++row) {
    first += sums[0][row][threadIdx.x];
    second += sums[1][row][threadIdx.x];
  }
  finish(column, first, second);
}

// Both, `partial` being a workspace of column_sums_workspace() bytes.
template <int kWidth, class A, class Terms, class Finish>
void sum_columns(std::int64_t rows, std::int64_t columns, const Terms& terms, const Finish& finish, double* partial,
                 cudaStream_t stream) {
  const std::int64_t chunks = chunks_of_rows(rows);
  if (chunks > 0) {
    const dim3 threads = threads_of_columns<kWidth>(columns);
    const auto tiles = static_cast<unsigned>(tiles_of_columns<kWidth>(columns, threads));
    const dim3 blocks(tiles, static_cast<unsigned>(chunks));
    sum_chunks<kWidth, A><<<blocks, threads, 0, stream>>>(rows, columns, (rows + chunks - 1) / chunks, terms, partial);
  }
  const auto blocks = static_cast<unsigned>((columns + kLanes - 1) / kLanes);
  add_chunks<<<blocks, dim3(kLanes, kThreadsOfColumn), 0, stream>>>(columns, chunks, partial, finish);
}

}  // namespace paceline
