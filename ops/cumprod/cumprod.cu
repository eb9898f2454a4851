#include "cumprod/cumprod.h"
#include "cumprod/lines.h"

#include "shared/rows.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline {
namespace {

// A thread for each line.
template <class T>
__global__ void multiply_lines(const AxisView view, const T* x, T* y) {
  for (std::int64_t line = detail::first_index(); line < view.lines(); line += detail::index_step())
    multiply_line(x + view.first(line), y + view.first(line), view.size, view.inner);
}

template <class T>
__global__ void multiply_lines_gradient(const AxisView view, const T* gradient, const T* x, T* dx, double* sums) {
  for (std::int64_t line = detail::first_index(); line < view.lines(); line += detail::index_step()) {
    const std::int64_t first = view.first(line);
    multiply_line_gradient(gradient + first, x + first, dx + first, sums + first, view.size, view.inner);
  }
}

AxisView view_of(const Shape& shape, const void* attributes) {
  return around_axis(shape,
                     normalize_axis(static_cast<const CumprodAttributes*>(attributes)->axis, shape.ndim(), "cumprod"));
}

void cumprod_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const AxisView view = view_of(in[0].shape, attributes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_dtype(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>)
      multiply_lines<T>
          <<<detail::grid_for(view.lines()), detail::kThreads, 0, stream>>>(view, in[0].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting cumprod");
}

void cumprod_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                           const void* attributes) {
  const AxisView view = view_of(in[0].shape, attributes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "cumprod_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    multiply_lines_gradient<T><<<detail::grid_for(view.lines()), detail::kThreads, 0, stream>>>(
        view, in[0].as<const T>(), in[1].as<const T>(), out[0].as<T>(), static_cast<double*>(context.workspace));
  });
  detail::check_cuda(cudaGetLastError(), "starting the gradient of cumprod");
}

}  // namespace

OpDef cumprod_on_cuda(OpDef op) { return std::move(op).cuda(cumprod_cuda); }
OpDef cumprod_backward_on_cuda(OpDef op) { return std::move(op).cuda(cumprod_backward_cuda); }

}  // namespace paceline
