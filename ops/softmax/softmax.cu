#include "softmax/softmax.h"

#include "shared/line.cuh"
#include "shared/rows.h"

#include <limits>

namespace paceline {

namespace {

AxisView view_of(const Tensor& x, const void* attributes) {
  const int axis = static_cast<const SoftmaxAttributes*>(attributes)->axis;
  return around_axis(x.shape, normalize_axis(axis, x.shape.ndim(), "softmax"));
}

template <bool kLog, int kWidth, class T>
__global__ void __launch_bounds__(kMostThreadsOfLine) softmax_lines(const AxisView view, const T* x, T* y) {
  using A = accumulator_t<T>;
  for (std::int64_t line = first_line(); line < view.lines(); line += line_step()) {
    const Line<T, kWidth> in(view.size, view.inner, x + view.first(line));
    const A top = in.fold(
        -std::numeric_limits<A>::infinity(), [](const A* v) { return v[0]; }, Larger());
    const A total = in.sum([=](const A* v) { return std::exp(v[0] - top); });
    const A rest = std::log(total);
    const A scale = A(1) / total;
    in.write(y + view.first(line),
             [=](std::int64_t, const A* v) { return kLog ? v[0] - top - rest : std::exp(v[0] - top) * scale; });
  }
}

template <bool kLog, int kWidth, class T>
__global__ void __launch_bounds__(kMostThreadsOfLine)
    backward_lines(const AxisView view, const T* dy, const T* y, T* dx) {
  using A = accumulator_t<T>;
  for (std::int64_t line = first_line(); line < view.lines(); line += line_step()) {
    const std::int64_t first = view.first(line);
    const Line<T, kWidth, 2> in(view.size, view.inner, dy + first, y + first);
    const A total = in.sum([](const A* v) { return kLog ? v[0] : v[0] * v[1]; });
    in.write(dx + first,
             [=](std::int64_t, const A* v) { return kLog ? v[0] - std::exp(v[1]) * total : v[1] * (v[0] - total); });
  }
}

template <bool kLog>
void softmax_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const AxisView view = view_of(in[0], attributes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "softmax", [&]<class T>(TypeTag<T>) {
    const LineGrid grid(view.lines(), view.size * static_cast<std::int64_t>(sizeof(T)));
    with_vectors<T>(view.size, view.inner, {in[0].data, out[0].data}, [&]<int kWidth>(Width<kWidth>) {
      softmax_lines<kLog, kWidth><<<grid.blocks, grid.threads, 0, stream>>>(view, in[0].as<const T>(), out[0].as<T>());
    });
  });
  detail::check_cuda(cudaGetLastError(), "starting softmax");
}

template <bool kLog>
void softmax_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                           const void* attributes) {
  const AxisView view = view_of(in[0], attributes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "softmax_backward", [&]<class T>(TypeTag<T>) {
    const LineGrid grid(view.lines(), view.size * static_cast<std::int64_t>(sizeof(T)));
    with_vectors<T>(view.size, view.inner, {in[0].data, in[1].data, out[0].data}, [&]<int kWidth>(Width<kWidth>) {
      backward_lines<kLog, kWidth>
          <<<grid.blocks, grid.threads, 0, stream>>>(view, in[0].as<const T>(), in[1].as<const T>(), out[0].as<T>());
    });
  });
  detail::check_cuda(cudaGetLastError(), "starting softmax_backward");
}

}  // namespace

OpDef softmax_on_cuda(OpDef op) { return std::move(op).cuda(softmax_cuda<false>); }
OpDef softmax_backward_on_cuda(OpDef op) { return std::move(op).cuda(softmax_backward_cuda<false>); }
OpDef log_softmax_on_cuda(OpDef op) { return std::move(op).cuda(softmax_cuda<true>); }
OpDef log_softmax_backward_on_cuda(OpDef op) { return std::move(op).cuda(softmax_backward_cuda<true>); }

}  // namespace paceline
