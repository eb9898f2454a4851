#include "normalize/normalize.h"

#include "shared/block.cuh"

namespace paceline {

namespace {

// Rows of the last `axes` axes.
struct Rows {
  std::int64_t count = 1, size = 1;

  Rows(const Shape& shape, int axes) {
    for (int i = 0; i < shape.ndim(); ++i) (i < shape.ndim() - axes ? count : size) *= shape[i];
  }
};

template <class T, class A>
__global__ void standardize_rows(const Rows rows, bool centered, A epsilon, const T* x, T* y, A* inverse_deviation) {
  const A count = static_cast<A>(rows.size);
  for (std::int64_t row = blockIdx.x; row < rows.count; row += gridDim.x) {
    const T* const from = x + row * rows.size;
    const auto value = [=](std::int64_t i) { return static_cast<A>(from[i]); };
    const A mean = centered ? sum_values<A>(rows.size, value) / count : A(0);
    const A variance =
        sum_values<A>(rows.size, [=](std::int64_t i) { return (value(i) - mean) * (value(i) - mean); }) / count;
    const A scale = A(1) / std::sqrt(variance + epsilon);
    if (threadIdx.x == 0) inverse_deviation[row] = scale;
    for (std::int64_t i = threadIdx.x; i < rows.size; i += blockDim.x)
      y[row * rows.size + i] = T((value(i) - mean) * scale);
  }
}

template <class T, class A>
__global__ void backward_rows(const Rows rows, bool centered, const T* dy, const T* y, const A* inverse_deviation,
                              T* dx) {
  const A count = static_cast<A>(rows.size);
  for (std::int64_t row = blockIdx.x; row < rows.count; row += gridDim.x) {
    const std::int64_t first = row * rows.size;
    const auto gradient = [=](std::int64_t i) { return static_cast<A>(dy[first + i]); };
    const auto result = [=](std::int64_t i) { return static_cast<A>(y[first + i]); };
    const A mean = centered ? sum_values<A>(rows.size, gradient) / count : A(0);
    const A along = sum_values<A>(rows.size, [=](std::int64_t i) { return gradient(i) * result(i); }) / count;
    for (std::int64_t i = threadIdx.x; i < rows.size; i += blockDim.x)
      dx[first + i] = T(inverse_deviation[row] * (gradient(i) - mean - result(i) * along));
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
  visit_floating(in[0].dtype, "standardize", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = accumulator_t<T>;
    standardize_rows<<<blocks_for(rows.count), threads_for(rows.size), 0, stream>>>(
        rows, of(attributes).centered, static_cast<A>(of(attributes).epsilon), in[0].as<const T>(), out[0].as<T>(),
        out[1].as<A>());
  });
  detail::check_cuda(cudaGetLastError(), "starting standardize");
}

void backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const Rows rows(in[0].shape, of(attributes).axes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "standardize_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = accumulator_t<T>;
    backward_rows<<<blocks_for(rows.count), threads_for(rows.size), 0, stream>>>(
        rows, of(attributes).centered, in[0].as<const T>(), in[1].as<const T>(), in[2].as<const A>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting standardize_backward");
}

}  // namespace

OpDef standardize_on_cuda(OpDef op) { return std::move(op).cuda(standardize_cuda); }
OpDef standardize_backward_on_cuda(OpDef op) { return std::move(op).cuda(backward_cuda); }

}  // namespace paceline
