#include "softmax/softmax.h"

#include "shared/block.cuh"
#include "shared/fast_math.h"
#include "shared/rows.h"

namespace paceline {

namespace {

AxisView view_of(const Tensor& x, const void* attributes) {
  const int axis = static_cast<const SoftmaxAttributes*>(attributes)->axis;
  return around_axis(x.shape, normalize_axis(axis, x.shape.ndim(), "softmax"));
}

template <bool kLog, class T>
__global__ void softmax_lines(const AxisView view, const T* x, T* y) {
  using A = accumulator_t<T>;
  for (std::int64_t line = blockIdx.x; line < view.lines(); line += gridDim.x) {
    const T* const from = x + view.first(line);
    T* const to = y + view.first(line);
    const auto value = [=](std::int64_t i) { return static_cast<A>(from[i * view.inner]); };
    const A top = fold_values(view.size, value(0), value, Larger());
    const A total = sum_values<A>(view.size, [=](std::int64_t i) { return fast_exp(value(i) - top); });
    const A rest = std::log(total);
    const A scale = A(1) / total;
    for (std::int64_t i = threadIdx.x; i < view.size; i += blockDim.x)
      to[i * view.inner] = T(kLog ? value(i) - top - rest : fast_exp(value(i) - top) * scale);
  }
}

template <bool kLog, class T>
__global__ void backward_lines(const AxisView view, const T* dy, const T* y, T* dx) {
  using A = accumulator_t<T>;
  for (std::int64_t line = blockIdx.x; line < view.lines(); line += gridDim.x) {
    const std::int64_t first = view.first(line);
    const auto gradient = [=](std::int64_t i) { return static_cast<A>(dy[first + i * view.inner]); };
    const auto result = [=](std::int64_t i) { return static_cast<A>(y[first + i * view.inner]); };
    const A total =
        sum_values<A>(view.size, [=](std::int64_t i) { return kLog ? gradient(i) : gradient(i) * result(i); });
    for (std::int64_t i = threadIdx.x; i < view.size; i += blockDim.x)
      dx[first + i * view.inner] =
          T(kLog ? gradient(i) - fast_exp(result(i)) * total : result(i) * (gradient(i) - total));
  }
}

template <bool kLog>
void softmax_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const AxisView view = view_of(in[0], attributes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "softmax", [&](auto tag) {
    using T = typename decltype(tag)::type;
    softmax_lines<kLog>
        <<<blocks_for(view.lines()), threads_for(view.size), 0, stream>>>(view, in[0].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting softmax");
}

template <bool kLog>
void softmax_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                           const void* attributes) {
  const AxisView view = view_of(in[0], attributes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "softmax_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    backward_lines<kLog><<<blocks_for(view.lines()), threads_for(view.size), 0, stream>>>(
        view, in[0].as<const T>(), in[1].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting softmax_backward");
}

}  // namespace

OpDef softmax_on_cuda(OpDef op) { return std::move(op).cuda(softmax_cuda<false>); }
OpDef softmax_backward_on_cuda(OpDef op) { return std::move(op).cuda(softmax_backward_cuda<false>); }
OpDef log_softmax_on_cuda(OpDef op) { return std::move(op).cuda(softmax_cuda<true>); }
OpDef log_softmax_backward_on_cuda(OpDef op) { return std::move(op).cuda(softmax_backward_cuda<true>); }

}  // namespace paceline
