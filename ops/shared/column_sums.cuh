#pragma once
// CUDA kernels that add up the columns of a matrix, two sums for each: chunks of rows first, then their sums. The order
// is always the same.

#include "shared/column_sums.h"
#include "shared/line.cuh"

namespace paceline {

constexpr int kThreadsOfChunk = 256;

// partial[chunk][which][column]. terms(row, column, first, second) adds a row's to the sums of kWidth columns. Blocks
// are of (columns / kWidth, rows) threads.
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

// finish(column, first sum, second sum)
template <class Finish>
__global__ void add_chunks(std::int64_t columns, std::int64_t chunks, const double* partial, const Finish finish) {
  const std::int64_t column = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  double first = 0, second = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    first += partial[chunk * 2 * columns + column];
    second += partial[(chunk * 2 + 1) * columns + column];
  }
  finish(column, first, second);
}

// Both, `partial` being a workspace of column_sums_workspace() bytes.
template <int kWidth, class A, class Terms, class Finish>
void sum_columns(std::int64_t rows, std::int64_t columns, const Terms& terms, const Finish& finish, double* partial,
                 cudaStream_t stream) {
  const std::int64_t chunks = chunks_of_rows(rows);
  if (chunks > 0) {
    unsigned lanes = 1;
    while (lanes < kLanes && lanes * kWidth < columns) lanes *= 2;
    const std::int64_t tiles = (columns + lanes * kWidth - 1) / (lanes * kWidth);
    const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(chunks));
    const dim3 threads(lanes, kThreadsOfChunk / lanes);
    sum_chunks<kWidth, A><<<blocks, threads, 0, stream>>>(rows, columns, (rows + chunks - 1) / chunks, terms, partial);
  }
  const auto blocks = static_cast<unsigned>((columns + kThreadsOfChunk - 1) / kThreadsOfChunk);
  add_chunks<<<blocks, kThreadsOfChunk, 0, stream>>>(columns, chunks, partial, finish);
}

}  // namespace paceline
