#include "kernels/cuda_kernels.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline::detail {
namespace {

template <class To>
__global__ void cast_elements(const Loops loops, DType from, const void* data, To* out) {
  for (std::int64_t i = first_index(); i < loops.total; i += index_step()) {
    const Offsets<2> offsets(loops, i);
    out[offsets.at[0]] = load_as<To>(from, data, offsets.at[1]);
  }
}

struct Same {
  template <class T>
  __device__ T operator()(T value) const {
    return value;
  }
};

template <class T>
constexpr bool kIsFloating = std::is_floating_point_v<T> || kIsHalf<T>;

void cast(const KernelContext& context, const Tensor& from, const Tensor& to, const Loops& loops) {
  visit_dtype(to.dtype, [&]<class To>(TypeTag<To>) {
    // What training casts between goes in vectors.
    if constexpr (kIsFloating<To>)
      if (is_floating(from.dtype))
        return visit_floating(from.dtype, "cast", [&]<class From>(TypeTag<From>) {
          elementwise_cuda<To, From>(context, Same(), to, from);
        });
    cast_elements<To>
        <<<grid_for(loops.total), kThreads, 0, stream_of(context)>>>(loops, from.dtype, from.data, to.as<To>());
  });
}

void copy(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs, const void*) {
  const Tensor& from = inputs[0];
  const Tensor& to = outputs[0];
  const std::array<Strides, 2> strides{to.strides, from.strides};
  const Loops loops = make_loops(to.shape, strides);
  if (loops.total == 0) return;
  const bool one_run = loops.ndim == 1 && loops.strides[0][0] == 1 && loops.strides[1][0] == 1;
  if (from.dtype == to.dtype && one_run) {
    const std::size_t bytes = static_cast<std::size_t>(loops.total) * size_of(to.dtype);
    check_cuda(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, stream_of(context)),
               "copying on the device");
    return;
  }
  if (from.dtype != to.dtype) {
    cast(context, from, to, loops);
  } else {
    switch (size_of(to.dtype)) {
      case 1: elementwise_cuda<std::uint8_t, std::uint8_t>(context, Same(), to, from); break;
      case 2: elementwise_cuda<std::uint16_t, std::uint16_t>(context, Same(), to, from); break;
      case 4: elementwise_cuda<std::uint32_t, std::uint32_t>(context, Same(), to, from); break;
      default: elementwise_cuda<std::uint64_t, std::uint64_t>(context, Same(), to, from); break;
    }
  }
  check_cuda(cudaGetLastError(), "starting a copy kernel");
}

}  // namespace

KernelFunction copy_cuda() { return copy; }

}  // namespace paceline::detail
