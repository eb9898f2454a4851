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

// Neighbours in one of the two arrays may lie apart in the other. Such arrays go through shared memory in tiles of
// kSide places along both axes. So neighbouring threads read, and write, neighbouring places.
template <class T>
inline constexpr int kSide = sizeof(T) < 4 ? 64 : 32;
constexpr int kTileThreads = 32, kTileRows = kThreads / kTileThreads;

// The axis of the loops along which neighbours are read; -1: tiles would not help.
int axis_of_reads(const Loops& loops) {
  constexpr std::int64_t kSmallest = 8;
  const int last = loops.ndim - 1;
  if (loops.strides[0][last] != 1 || loops.strides[1][last] == 1 || loops.sizes[last] < kSmallest) return -1;
  for (int d = 0; d < last; ++d)
    if (loops.strides[1][d] == 1 && loops.sizes[d] >= kSmallest) return d;
  return -1;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_tiles(const Loops loops, int axis, std::int64_t tiles, const T* from, T* to) {
  __shared__ T tile[kSide<T>][kSide<T> + 1];
  const int last = loops.ndim - 1;
  const std::int64_t width = loops.sizes[last], height = loops.sizes[axis];
  const std::int64_t across = (width + kSide<T> - 1) / kSide<T>, down = (height + kSide<T> - 1) / kSide<T>;
  for (std::int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const std::int64_t left = number % across * kSide<T>, top = number / across % down * kSide<T>;
    std::int64_t rest = number / (across * down);
    const T* source = from + left * loops.strides[1][last] + top;
    T* target = to + left + top * loops.strides[0][axis];
    for (int d = last - 1; d >= 0; --d) {
      if (d == axis) continue;
      source += rest % loops.sizes[d] * loops.strides[1][d];
      target += rest % loops.sizes[d] * loops.strides[0][d];
      rest /= loops.sizes[d];
    }
    const std::int64_t columns = min(width - left, std::int64_t{kSide<T>});
    const std::int64_t rows = min(height - top, std::int64_t{kSide<T>});
    __syncthreads();  // all threads have written out the previous tile
    for (std::int64_t column = threadIdx.y; column < columns; column += kTileRows)
      for (std::int64_t row = threadIdx.x; row < rows; row += kTileThreads)
        tile[column][row] = source[column * loops.strides[1][last] + row];
    __syncthreads();
    for (std::int64_t row = threadIdx.y; row < rows; row += kTileRows)
      for (std::int64_t column = threadIdx.x; column < columns; column += kTileThreads)
        target[row * loops.strides[0][axis] + column] = tile[column][row];
  }
}

// Copies between arrays of one type. T is an integer of the same size, because only the bits count.
template <class T>
void copy_bits(const KernelContext& context, const Tensor& from, const Tensor& to, const Loops& loops) {
  const int axis = axis_of_reads(loops);
  if (axis < 0) return elementwise_cuda<T, T>(context, Same(), to, from);
  constexpr std::int64_t kMostBlocks = 65535;
  const auto pieces = [](std::int64_t size) { return (size + kSide<T> - 1) / kSide<T>; };
  const std::int64_t width = loops.sizes[loops.ndim - 1], height = loops.sizes[axis];
  const std::int64_t tiles = pieces(width) * pieces(height) * (loops.total / (width * height));
  copy_tiles<T>
      <<<static_cast<unsigned>(std::min(tiles, kMostBlocks)), dim3(kTileThreads, kTileRows), 0, stream_of(context)>>>(
          loops, axis, tiles, from.as<const T>(), to.as<T>());
}

template <class T>
constexpr bool kIsFloating = std::is_floating_point_v<T> || kIsHalf<T>;

void cast(const KernelContext& context, const Tensor& from, const Tensor& to, const Loops& loops) {
  visit_dtype(to.dtype, [&]<class To>(TypeTag<To>) {
    // Training casts between floating types. Such casts read and write several elements at once where layouts allow.
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
      case 1: copy_bits<std::uint8_t>(context, from, to, loops); break;
      case 2: copy_bits<std::uint16_t>(context, from, to, loops); break;
      case 4: copy_bits<std::uint32_t>(context, from, to, loops); break;
      default: copy_bits<std::uint64_t>(context, from, to, loops); break;
    }
  }
  check_cuda(cudaGetLastError(), "starting a copy kernel");
}

}  // namespace

KernelFunction copy_cuda() { return copy; }

}  // namespace paceline::detail
