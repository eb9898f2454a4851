#pragma once
// CUDA kernels that fold lines of elements: a warp, or a block, reads a line once and keeps it in registers.

#include <paceline/detail/elementwise.cuh>

#include <algorithm>
#include <initializer_list>

namespace paceline {

constexpr int kLanes = 32;
constexpr int kMostThreadsOfLine = 1024;
constexpr int kHeldBytes = 64;  // of a line, in the registers of a thread

struct Plus {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};

// NaN counts as the largest.
struct Larger {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return b > a || b != b ? b : a;
  }
};

// How a kernel takes lines: blocks of (threads of a line, lines), each taking every further ones.
struct LineGrid {
  dim3 blocks, threads;

  LineGrid(std::int64_t lines, std::int64_t line_bytes, unsigned most_threads = kMostThreadsOfLine) {
    constexpr std::int64_t kMostBlocks = 65535;
    constexpr unsigned kThreads = 256;
    threads.x = kLanes;
    while (threads.x < most_threads && threads.x * kHeldBytes < line_bytes) threads.x *= 2;
    threads.y = threads.x == kLanes ? kThreads / kLanes : 1;
    blocks.x = static_cast<unsigned>(std::clamp<std::int64_t>((lines + threads.y - 1) / threads.y, 1, kMostBlocks));
  }
};

__device__ inline std::int64_t first_line() { return std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }
__device__ inline std::int64_t line_step() { return std::int64_t{gridDim.x} * blockDim.y; }

// Combines the values of the threads of a line, always in the same order; all get the result, and all must call it.
// `combine` gives the same whichever of its arguments comes first.
template <class A, class Combine>
__device__ A fold_line(A mine, const Combine& combine) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    mine = combine(mine, __shfl_xor_sync(0xffffffffu, mine, distance));
  if (blockDim.x == kLanes) return mine;
  __shared__ A of_warps[kMostThreadsOfLine / kLanes];
  __syncthreads();  // the results of the fold before have been read
  if (threadIdx.x % kLanes == 0) of_warps[threadIdx.x / kLanes] = mine;
  __syncthreads();
  mine = of_warps[0];
  for (unsigned warp = 1; warp < blockDim.x / kLanes; ++warp) mine = combine(mine, of_warps[warp]);
  return mine;
}

// One line of one or several arrays, as the thread sees it that has a part of its elements. What the registers do not
// hold is read again each time.
template <class T, int kWidth, int kOperands = 1>
class Line {
 public:
  using A = accumulator_t<T>;

  // The arrays begin at `from`; neighbours are `step` apart, which is 1 for vectors.
  template <class... From>
  __device__ Line(std::int64_t size, std::int64_t step, const From*... from)
      : size_(size), step_(step), from_{from...} {
    read(0, held_);
  }

  // Calls body(i, values of the operands).
  template <class Body>
  __device__ void for_each(const Body& body) const {
    for_each_vector([&](std::int64_t i, const Part& part, int v) {
      for (int k = 0; k < kWidth; ++k) body(i + k, values(part, v, k).of);
    });
  }

  template <class Value, class Combine>
  __device__ A fold(A start, const Value& value, const Combine& combine) const {
    for_each([&](std::int64_t, const A* x) { start = combine(start, value(x)); });
    return fold_line(start, combine);
  }
  template <class Value>
  __device__ A sum(const Value& value) const {
    return fold(A(0), value, Plus());
  }

  // to[i] = value(i, values of the operands), `to` being laid out as they are.
  template <class Value>
  __device__ void write(T* to, const Value& value) const {
    for_each_vector([&](std::int64_t i, const Part& part, int v) {
      detail::Vector<T, kWidth> results;
      for (int k = 0; k < kWidth; ++k) results.at[k] = detail::stored<T>(value(i + k, values(part, v, k).of));
      detail::write_vector(to + i * step_, results);
    });
  }

 private:
  static constexpr int kVectors = kHeldBytes / (kWidth * static_cast<int>(sizeof(T)));
  struct Part {
    detail::Vector<T, kWidth> of[kOperands][kVectors];
  };
  struct Values {
    A of[kOperands];
  };

  __device__ static Values values(const Part& part, int v, int k) {
    Values result;
    for (int n = 0; n < kOperands; ++n) result.of[n] = detail::load(part.of[n][v].at[k]);
    return result;
  }
  __device__ static std::int64_t place(std::int64_t number, int v) {
    return ((number * kVectors + v) * blockDim.x + threadIdx.x) * kWidth;
  }
  __device__ void read(std::int64_t number, Part& part) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t i = place(number, v);
      if (i >= size_) continue;
#pragma unroll
      for (int n = 0; n < kOperands; ++n) part.of[n][v] = detail::read_vector<kWidth>(from_[n] + i * step_);
    }
  }
  template <class Body>
  __device__ void visit(std::int64_t number, const Part& part, const Body& body) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (const std::int64_t i = place(number, v); i < size_) body(i, part, v);
  }
  template <class Body>
  __device__ void for_each_vector(const Body& body) const {
    visit(0, held_, body);
    for (std::int64_t number = 1; place(number, 0) < size_; ++number) {
      Part part;
      read(number, part);
      visit(number, part, body);
    }
  }

  std::int64_t size_, step_;
  const T* from_[kOperands];
  Part held_;
};

template <int kWidth>
using Width = std::integral_constant<int, kWidth>;

// Calls start(Width<...>) with the width of the vectors in which lines of `size` neighbours can
// be read and written that follow each other in arrays at `places`.
template <class T, class Start>
void with_vectors(std::int64_t size, std::int64_t step, std::initializer_list<const void*> places, const Start& start) {
  constexpr int kWidth = detail::kVectorWidth<T>;
  const bool wide = step == 1 && size % kWidth == 0 && std::all_of(places.begin(), places.end(), [](const void* at) {
                      return detail::is_aligned<kWidth>(static_cast<const T*>(at));
                    });
  if (wide)
    start(Width<kWidth>());
  else
    start(Width<1>());
}

}  // namespace paceline
