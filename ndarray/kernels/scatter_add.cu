#include "kernels/cuda_kernels.h"
#include "kernels/functors.h"

#include <paceline/detail/device_positions.cuh>

namespace paceline::detail {
namespace {

constexpr int kRowsOfPiece = 4 * kThreads, kWarp = 32, kWarpsOfPiece = kRowsOfPiece / kWarp;

// Which rows of a piece of the update go to rows of the table that are the block's.
struct Piece {
  int count;
  int numbers[kRowsOfPiece];  // in the piece, in order
  std::int64_t rows[kRowsOfPiece];
};

// All threads of the block must call it.
__device__ void find_rows(const DevicePositions& rows, std::int64_t begin, std::int64_t end, Piece& piece) {
  __shared__ unsigned found[kWarpsOfPiece];
  std::int64_t mine[kRowsOfPiece / kThreads];
  __syncthreads();  // the piece before has been read
  for (int k = 0; k < kRowsOfPiece / kThreads; ++k) {
    const std::int64_t i = begin + k * kThreads + threadIdx.x;
    mine[k] = i < end ? rows[i] : -1;
    if (mine[k] >= 0 && mine[k] % gridDim.x != blockIdx.x) mine[k] = -1;
    const unsigned of_warp = __ballot_sync(0xffffffffu, mine[k] >= 0);
    if (threadIdx.x % kWarp == 0) found[(k * kThreads + threadIdx.x) / kWarp] = of_warp;
  }
  __syncthreads();
  for (int k = 0; k < kRowsOfPiece / kThreads; ++k) {
    if (mine[k] < 0) continue;
    const int number = k * kThreads + static_cast<int>(threadIdx.x), warp = number / kWarp;
    int at = __popc(found[warp] & ((1U << number % kWarp) - 1));
    for (int before = 0; before < warp; ++before) at += __popc(found[before]);
    piece.numbers[at] = number;
    piece.rows[at] = mine[k];
  }
  if (threadIdx.x == 0) {
    piece.count = 0;
    for (int warp = 0; warp < kWarpsOfPiece; ++warp) piece.count += __popc(found[warp]);
  }
  __syncthreads();
}

// A block has every gridDim.x-th row of the table, and of those a column for each thread. It goes through the update
// from front to back, so rows that repeat are added in order. A row number outside the table is left out.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_rows(std::int64_t count, const DevicePositions rows, const T* values, std::int64_t width, T* table) {
  constexpr int kAhead = 8;  // values that a thread reads before it adds the first
  __shared__ Piece piece;
  for (std::int64_t first = std::int64_t{blockIdx.y} * kThreads; first < width; first += gridDim.y * kThreads) {
    const std::int64_t j = first + threadIdx.x;
    std::int64_t row = -1;
    T sum{};
    for (std::int64_t begin = 0; begin < count; begin += kRowsOfPiece) {
      find_rows(rows, begin, min(count, begin + kRowsOfPiece), piece);
      if (j >= width) continue;
      const T* const from = values + begin * width + j;
      for (int i = 0; i < piece.count; i += kAhead) {
        T read[kAhead];
        for (int k = 0; k < kAhead; ++k)
          if (i + k < piece.count) read[k] = from[piece.numbers[i + k] * width];
        for (int k = 0; k < kAhead; ++k) {
          if (i + k >= piece.count) continue;
          if (piece.rows[i + k] != row) {
            if (row >= 0) table[row * width + j] = sum;
            row = piece.rows[i + k];
            sum = table[row * width + j];
          }
          sum = convert<T>(wrapping_sum(load(sum), load(read[k])));
        }
      }
    }
    if (row >= 0) table[row * width + j] = sum;
  }
}

void scatter_add(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                 const void*) {
  const Tensor& table = outputs[0];
  if (table.size() == 0) return;
  const std::int64_t height = table.shape[0];
  const std::int64_t width = table.size() / height;
  const DevicePositions rows(context, inputs[0], height,
                             "[scatter_add] row {} (number {} of the update) is outside a table of {}");
  constexpr std::int64_t kBlocks = 1024, kMostTiles = 16;  // every block reads all numbers of rows
  const std::int64_t tiles = std::min((width + kThreads - 1) / kThreads, kMostTiles);
  const std::int64_t parts = std::min({kBlocks / tiles, height, std::max<std::int64_t>(1, inputs[0].size())});
  const dim3 blocks(static_cast<unsigned>(parts), static_cast<unsigned>(tiles));
  const cudaStream_t stream = stream_of(context);
  visit_dtype(table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    add_rows<T><<<blocks, kThreads, 0, stream>>>(inputs[0].size(), rows, inputs[1].as<const T>(), width, table.as<T>());
  });
  check_cuda(cudaGetLastError(), "starting scatter_add");
}

}  // namespace

KernelFunction scatter_add_cuda() { return scatter_add; }

}  // namespace paceline::detail
