#pragma once
// CUDA kernels in which a block works on one line of elements at a time.

#include "shared/line.cuh"

#include <algorithm>

namespace paceline {

constexpr int kMostThreads = 1024;  // of a block that folds

// A power of two, so that short lines leave few threads idle.
inline int threads_for(std::int64_t size, int most = detail::kThreads) {
  int threads = 32;
  while (threads < most && threads < size) threads *= 2;
  return threads;
}

// Each block takes every further line at a distance of the whole grid.
inline unsigned blocks_for(std::int64_t lines) {
  constexpr std::int64_t kMostBlocks = 65535;
  return static_cast<unsigned>(std::clamp<std::int64_t>(lines, 1, kMostBlocks));
}

// Combines the values of the threads pairwise, always in the same order; every thread gets the result. All threads of
// the block must call it; their number is a power of two.
template <class A, class Combine>
__device__ A fold_block(A mine, const Combine& combine) {
  __shared__ A parts[kMostThreads];
  __syncthreads();  // the result of the fold before has been read
  parts[threadIdx.x] = mine;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) parts[threadIdx.x] = combine(parts[threadIdx.x], parts[threadIdx.x + half]);
  }
  __syncthreads();
  return parts[0];
}

// Folds value(0) ... value(count - 1), starting each thread from `start`.
template <class A, class Value, class Combine>
__device__ A fold_values(std::int64_t count, A start, const Value& value, const Combine& combine) {
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) start = combine(start, value(i));
  return fold_block(start, combine);
}

template <class A, class Value>
__device__ A sum_values(std::int64_t count, const Value& value) {
  return fold_values(count, A(0), value, Plus());
}

}  // namespace paceline
