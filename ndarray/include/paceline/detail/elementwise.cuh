#pragma once
// Loops of CUDA kernels over elements: the twin of elementwise.h, for the same functors.

#include <paceline/detail/convert.h>
#include <paceline/detail/cuda_check.h>
#include <paceline/detail/loops.h>
#include <paceline/kernel.h>

#include <algorithm>
#include <array>
#include <cstdint>
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
      const std::int64_t i = index % loops.sizes[d];
      index /= loops.sizes[d];
      for (int n = 0; n < N; ++n) at[n] += i * loops.strides[n][d];
    }
  }
};

template <class T>
__device__ inline accumulator_t<T> load(const T& value) {
  return static_cast<accumulator_t<T>>(value);
}

// Element i of an array whose type is a value here, not a parameter: one kernel instead of nine; memory is the limit.
template <class To>
__device__ To load_as(DType from, const void* data, std::int64_t i) {
  switch (from) {
    case DType::kFloat32:
      return convert<To>(static_cast<const float*>(data)[i]);
    case DType::kFloat64:
      return convert<To>(static_cast<const double*>(data)[i]);
    case DType::kFloat16:
      return convert<To>(static_cast<const float16*>(data)[i]);
    case DType::kBfloat16:
      return convert<To>(static_cast<const bfloat16*>(data)[i]);
    case DType::kUint8:
      return convert<To>(static_cast<const std::uint8_t*>(data)[i]);
    case DType::kInt8:
      return convert<To>(static_cast<const std::int8_t*>(data)[i]);
    case DType::kInt32:
      return convert<To>(static_cast<const std::int32_t*>(data)[i]);
    case DType::kInt64:
      return convert<To>(static_cast<const std::int64_t*>(data)[i]);
    case DType::kBool:
      return convert<To>(static_cast<const bool*>(data)[i]);
  }
  return To();
}

template <class F, class Out, class... In>
__global__ void map_contiguous(F f, std::int64_t total, Out* out, const In*... in) {
  for (std::int64_t i = first_index(); i < total; i += index_step()) out[i] = convert<Out>(f(load(in[i])...));
}

template <class F, class Out, class... In, std::size_t... I>
__device__ void map_one(const F& f, const Loops& loops, std::int64_t i, std::index_sequence<I...>, Out* out,
                        const In*... in) {
  const Offsets<1 + sizeof...(In)> offsets(loops, i);
  out[offsets.at[0]] = convert<Out>(f(load(in[offsets.at[I + 1]])...));
}

template <class F, class Out, class... In>
__global__ void map_strided(F f, const Loops loops, Out* out, const In*... in) {
  for (std::int64_t i = first_index(); i < loops.total; i += index_step())
    map_one(f, loops, i, std::index_sequence_for<In...>(), out, in...);
}

// out[i] = f(in[i]...), the inputs broadcast to the shape of `out`. float16 and bfloat16 reach `f` as float. Call as
// elementwise_cuda<float, float, float>(context, Add(), out, a, b); `f` is copied to the device.
template <class Out, class... In, class F, class... Inputs>
void elementwise_cuda(const KernelContext& context, const F& f, const Tensor& out, const Inputs&... inputs) {
  static_assert(sizeof...(In) == sizeof...(Inputs));
  constexpr int kOperands = 1 + sizeof...(In);
  const std::array<Strides, kOperands> strides{out.strides,
                                               broadcast_strides(inputs.shape, inputs.strides, out.shape)...};
  const Loops loops = make_loops(out.shape, strides);
  if (loops.total == 0) return;
  bool contiguous = loops.ndim == 1;
  for (int n = 0; n < kOperands; ++n) contiguous = contiguous && loops.strides[n][0] == 1;
  const cudaStream_t stream = stream_of(context);
  if (contiguous)
    map_contiguous<F, Out, In...><<<grid_for(loops.total), kThreads, 0, stream>>>(
        f, loops.total, out.template as<Out>(), inputs.template as<const In>()...);
  else
    map_strided<F, Out, In...><<<grid_for(loops.total), kThreads, 0, stream>>>(f, loops, out.template as<Out>(),
                                                                               inputs.template as<const In>()...);
  check_cuda(cudaGetLastError(), "starting an element-wise kernel");
}

}  // namespace paceline::detail
