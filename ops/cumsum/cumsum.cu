#include "cumsum/cumsum.h"

#include "shared/block.cuh"
#include "shared/rows.h"

#include <paceline/detail/wrapping.h>

namespace paceline {
namespace {

// A block sums one line, a piece of as many elements as it has threads after the other.
template <class T, class A>
__global__ void sum_lines(const AxisView view, bool reverse, const T* x, T* y) {
  __shared__ A sums[detail::kThreads];
  const unsigned me = threadIdx.x;
  for (std::int64_t line = blockIdx.x; line < view.lines(); line += gridDim.x) {
    A before = A(0);
    for (std::int64_t begin = 0; begin < view.size; begin += blockDim.x) {
      const std::int64_t i = begin + me;
      const std::int64_t at = view.first(line) + (reverse ? view.size - 1 - i : i) * view.inner;
      sums[me] = i < view.size ? static_cast<A>(detail::load(x[at])) : A(0);
      for (unsigned distance = 1; distance < blockDim.x; distance *= 2) {
        __syncthreads();
        const A left = me >= distance ? sums[me - distance] : A(0);
        __syncthreads();
        sums[me] = detail::wrapping_sum(left, sums[me]);
      }
      __syncthreads();
      if (i < view.size) y[at] = detail::convert<T>(detail::wrapping_sum(before, sums[me]));
      before = detail::wrapping_sum(before, sums[blockDim.x - 1]);
      __syncthreads();
    }
  }
}

void cumsum_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const auto& [axis, reverse] = *static_cast<const CumsumAttributes*>(attributes);
  const AxisView view = around_axis(in[0].shape, normalize_axis(axis, in[0].shape.ndim(), "cumsum"));
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_dtype(in[0].dtype, [&, reverse = reverse](auto tag) {
    using T = typename decltype(tag)::type;
    using A = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
    if constexpr (!std::is_same_v<T, bool>)
      sum_lines<T, A><<<blocks_for(view.lines()), threads_for(view.size), 0, stream>>>(
          view, reverse, in[0].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting cumsum");
}

}  // namespace

OpDef cumsum_on_cuda(OpDef op) { return std::move(op).cuda(cumsum_cuda); }

}  // namespace paceline
