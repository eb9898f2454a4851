#include "normalize/normalize.h"

#include "shared/line.cuh"

namespace paceline {

namespace {

// Rows of the last `axes` axes.
struct Rows {
  std::int64_t count = 1, size = 1;

  Rows(const Shape& shape, int axes) {
    for (int i = 0; i < shape.ndim(); ++i) (i < shape.ndim() - axes ? count : size) *= shape[i];
  }
};

template <int kWidth, class T, class A>
__global__ void __launch_bounds__(kMostThreadsOfLine)
    standardize_rows(const Rows rows, bool centered, A epsilon, const T* x, T* y, A* inverse_deviation) {
  const A count = static_cast<A>(rows.size);
  for (std::int64_t row = first_line(); row < rows.count; row += line_step()) {
    const Line<T, kWidth> in(rows.size, 1, x + row * rows.size);
    const A mean = centered ? in.sum([](const A* v) { return v[0]; }) / count : A(0);
    const A variance = in.sum([=](const A* v) { return (v[0] - mean) * (v[0] - mean); }) / count;
    const A scale = A(1) / std::sqrt(variance + epsilon);
    if (threadIdx.x == 0) inverse_deviation[row] = scale;
    in.write(y + row * rows.size, [=](std::int64_t, const A* v) { return (v[0] - mean) * scale; });
  }
}

template <int kWidth, class T, class A>
__global__ void __launch_bounds__(kMostThreadsOfLine)
    backward_rows(const Rows rows, bool centered, const T* dy, const T* y, const A* inverse_deviation, T* dx) {
  const A count = static_cast<A>(rows.size);
  for (std::int64_t row = first_line(); row < rows.count; row += line_step()) {
    const std::int64_t first = row * rows.size;
    const Line<T, kWidth, 2> in(rows.size, 1, dy + first, y + first);
    const A mean = centered ? in.sum([](const A* v) { return v[0]; }) / count : A(0);
    const A along = in.sum([](const A* v) { return v[0] * v[1]; }) / count;
    const A scale = inverse_deviation[row];
    in.write(dx + first, [=](std::int64_t, const A* v) { return scale * (v[0] - mean - v[1] * along); });
  }
}

const StandardizeAttributes& of(const void* attributes) {
  return *static_cast<const StandardizeAttributes*>(attributes);
}

void standardize_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                      const void* attributes) {
  const Rows rows(in[0].shape, of(attributes).axes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "standardize", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const LineGrid grid(rows.count, rows.size * static_cast<std::int64_t>(sizeof(T)));
    with_vectors<T>(rows.size, 1, {in[0].data, out[0].data}, [&]<int kWidth>(Width<kWidth>) {
      standardize_rows<kWidth><<<grid.blocks, grid.threads, 0, stream>>>(
          rows, of(attributes).centered, static_cast<A>(of(attributes).epsilon), in[0].as<const T>(), out[0].as<T>(),
          out[1].as<A>());
    });
  });
  detail::check_cuda(cudaGetLastError(), "starting standardize");
}

void backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const Rows rows(in[0].shape, of(attributes).axes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "standardize_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const LineGrid grid(rows.count, rows.size * static_cast<std::int64_t>(sizeof(T)));
    with_vectors<T>(rows.size, 1, {in[0].data, in[1].data, out[0].data}, [&]<int kWidth>(Width<kWidth>) {
      backward_rows<kWidth><<<grid.blocks, grid.threads, 0, stream>>>(
          rows, of(attributes).centered, in[0].as<const T>(), in[1].as<const T>(), in[2].as<const A>(), out[0].as<T>());
    });
  });
  detail::check_cuda(cudaGetLastError(), "starting standardize_backward");
}

}  // namespace

OpDef standardize_on_cuda(OpDef op) { return std::move(op).cuda(standardize_cuda); }
OpDef standardize_backward_on_cuda(OpDef op) { return std::move(op).cuda(backward_cuda); }

}  // namespace paceline
