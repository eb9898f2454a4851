#pragma once
// Loops of CUDA kernels over elements: the twin of elementwise.h, for the same functors.

#include <paceline/detail/cuda_check.h>
#include <paceline/detail/loops.h>
#include <paceline/kernel.h>
#include <paceline/detail/vectors.cuh>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

namespace paceline::detail {

// The stream of a kernel call; makes its device the current one of this thread.
inline cudaStream_t stream_of(const KernelContext& context) {
  select_cuda_device(context.device.index);
  return static_cast<cudaStream_t>(context.native_stream);
}

inline constexpr int kThreads = 256;

// Blocks of kThreads for `total` elements, each thread taking every further one at a distance of the whole grid.
inline int grid_for(std::int64_t total) {
  constexpr std::int64_t kMostBlocks = 4096;
  return static_cast<int>(std::clamp<std::int64_t>((total + kThreads - 1) / kThreads, 1, kMostBlocks));
}

__device__ inline std::int64_t first_index() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline std::int64_t index_step() { return std::int64_t{gridDim.x} * blockDim.x; }

// Where operand n has element `index` of the nest.
template <int N>
struct Offsets {
  std::int64_t at[N];
  __device__ Offsets(const Loops& loops, std::int64_t index) : at{} {
    for (int d = loops.ndim - 1; d >= 0; --d) {
      const std::int64_t i = d == 0 ? index : index % loops.sizes[d];
      if (d > 0) index /= loops.sizes[d];
      for (int n = 0; n < N; ++n) at[n] += i * loops.strides[n][d];
    }
  }
};

// Element i of an array whose type is a value here, not a parameter: one kernel instead of nine; memory is the limit.
template <class To>
__device__ To load_as(DType from, const void* data, std::int64_t i) {
  switch (from) {
    case DType::kFloat32: return convert<To>(static_cast<const float*>(data)[i]);
    case DType::kFloat64: return convert<To>(static_cast<const double*>(data)[i]);
    case DType::kFloat16: return convert<To>(static_cast<const float16*>(data)[i]);
    case DType::kBfloat16: return convert<To>(static_cast<const bfloat16*>(data)[i]);
    case DType::kUint8: return convert<To>(static_cast<const std::uint8_t*>(data)[i]);
    case DType::kInt8: return convert<To>(static_cast<const std::int8_t*>(data)[i]);
    case DType::kInt32: return convert<To>(static_cast<const std::int32_t*>(data)[i]);
    case DType::kInt64: return convert<To>(static_cast<const std::int64_t*>(data)[i]);
    case DType::kBool: return convert<To>(static_cast<const bool*>(data)[i]);
  }
  return To();
}

template <class F, class Out, class... In, std::size_t... I>
__device__ void map_one(const F& f, const Loops& loops, std::int64_t i, std::index_sequence<I...>, Out* out,
                        const In*... in) {
  const Offsets<1 + sizeof...(In)> offsets(loops, i);
  out[offsets.at[0]] = stored<Out>(f(load(in[offsets.at[I + 1]])...));
}

template <class F, class Out, class... In>
__global__ void map_elements(F f, const Loops loops, Out* out, const In*... in) {
  for (std::int64_t i = first_index(); i < loops.total; i += index_step())
    map_one(f, loops, i, std::index_sequence_for<In...>(), out, in...);
}

// A vector of each input of a map.
template <std::size_t kNumber, class T, int kWidth>
struct InputVector {
  Vector<T, kWidth> vector;
};
template <int kWidth, class Numbers, class... In>
struct InputVectors;
template <int kWidth, std::size_t... I, class... In>
struct InputVectors<kWidth, std::index_sequence<I...>, In...> : InputVector<I, In, kWidth>... {
  // An operand that stands still in the innermost loop has one element for the whole vector.
  __device__ void read([[maybe_unused]] const Loops& loops, [[maybe_unused]] const std::int64_t* at, const In*... in) {
    (read_one(InputVector<I, In, kWidth>::vector, in + at[I + 1], loops.strides[I + 1][loops.ndim - 1] == 0), ...);
  }
  template <class F>
  __device__ auto result(const F& f, [[maybe_unused]] int k) const {
    return f(load(InputVector<I, In, kWidth>::vector.at[k])...);
  }

 private:
  template <class T>
  __device__ static void read_one(Vector<T, kWidth>& to, const T* from, bool stands) {
    if (!stands)
      to = read_vector<kWidth>(from);
    else
      for (int k = 0; k < kWidth; ++k) to.at[k] = *from;
  }
};

// `vectors`: the loops over whole vectors. `loops`: the same over elements; what is left of a single one is done last.
template <int kWidth, class F, class Out, class... In>
__global__ void map_vectors(F f, const Loops vectors, const Loops loops, Out* out, const In*... in) {
  constexpr int kAhead = sizeof...(In) < 2 ? 2 : 1;  // vectors that a thread reads before it writes the first
  using Inputs = InputVectors<kWidth, std::index_sequence_for<In...>, In...>;
  for (std::int64_t first = first_index(); first < vectors.total; first += kAhead * index_step()) {
    Inputs inputs[kAhead];
    std::int64_t to[kAhead];
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const std::int64_t i = first + ahead * index_step();
      if (i >= vectors.total) continue;
      const Offsets<1 + sizeof...(In)> offsets(vectors, i);
      to[ahead] = offsets.at[0];
      inputs[ahead].read(vectors, offsets.at, in...);
    }
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      if (first + ahead * index_step() >= vectors.total) continue;
      Vector<Out, kWidth> results;
      for (int k = 0; k < kWidth; ++k) results.at[k] = stored<Out>(inputs[ahead].result(f, k));
      write_vector(out + to[ahead], results);
    }
  }
  for (std::int64_t i = vectors.total * kWidth + first_index(); i < loops.total; i += index_step())
    map_one(f, loops, i, std::index_sequence_for<In...>(), out, in...);
}

// The loops over vectors of an output and inputs at `data`, of these sizes; of none where they have to go one by one.
template <int kWidth>
Loops loops_over_vectors(const Loops& loops, std::span<const void* const> data, std::span<const std::size_t> sizes) {
  Loops vectors = loops;
  const int last = loops.ndim - 1;
  bool fits = loops.strides[0][last] == 1 && (loops.ndim == 1 || loops.sizes[last] % kWidth == 0);
  for (std::size_t n = 0; n < data.size(); ++n) {
    if (loops.strides[n][last] == 0) continue;
    const std::size_t bytes = std::min<std::size_t>(kWidth * sizes[n], kAccessBytes);
    fits = fits && loops.strides[n][last] == 1 && reinterpret_cast<std::uintptr_t>(data[n]) % bytes == 0;
    for (int d = 0; d < last; ++d) fits = fits && loops.strides[n][d] % kWidth == 0;
    vectors.strides[n][last] = kWidth;
  }
  vectors.sizes[last] /= kWidth;
  vectors.total = fits ? loops.total / kWidth : 0;
  return vectors;
}

// out[i] = f(in[i]...), the inputs broadcast to the shape of `out`. float16 and bfloat16 reach `f` as float. Call as
// elementwise_cuda<float, float, float>(context, Add(), out, a, b); `f` is copied to the device.
template <class Out, class... In, class F, class... Inputs>
void elementwise_cuda(const KernelContext& context, const F& f, const Tensor& out, const Inputs&... inputs) {
  static_assert(sizeof...(In) == sizeof...(Inputs));
  constexpr int kOperands = 1 + sizeof...(In), kWidth = kVectorWidth<Out, In...>;
  const std::array<Strides, kOperands> strides{out.strides,
                                               broadcast_strides(inputs.shape, inputs.strides, out.shape)...};
  const Loops loops = make_loops(out.shape, strides);
  if (loops.total == 0) return;
  const void* const data[] = {out.data, inputs.data...};
  constexpr std::size_t kSizes[] = {sizeof(Out), sizeof(In)...};
  const Loops vectors = loops_over_vectors<kWidth>(loops, data, kSizes);
  const cudaStream_t stream = stream_of(context);
  if (vectors.total > 0)
    map_vectors<kWidth, F, Out, In...><<<grid_for(vectors.total), kThreads, 0, stream>>>(
        f, vectors, loops, out.template as<Out>(), inputs.template as<const In>()...);
  else
    map_elements<F, Out, In...><<<grid_for(loops.total), kThreads, 0, stream>>>(f, loops, out.template as<Out>(),
                                                                                inputs.template as<const In>()...);
  check_cuda(cudaGetLastError(), "starting an element-wise kernel");
}

}  // namespace paceline::detail
