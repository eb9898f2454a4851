#include "csr_matmul/csr_matmul.h"

#include "shared/block.cuh"

#include <paceline/detail/device_positions.cuh>

namespace paceline {

namespace {

// The elements of a sparse matrix in the device's memory. Places outside the matrix are left out.
struct Elements {
  std::int64_t rows, count;
  const std::int64_t* starts;
  detail::DevicePositions places;
  // Reports about starts; kernels hand on the host's literals.
  const char* falling = "[csr_matmul] starts fall from {} to {} behind row {}";
  const char* wrong_ends = "[csr_matmul] starts go from {} to {}, expected 0 to {}";

  Elements(const KernelContext& context, const Shape& shape, const Tensor& row_starts, const Tensor& columns)
      : rows(shape[0]),
        count(columns.size()),
        starts(row_starts.as<const std::int64_t>()),
        places(context, columns, shape[1], "[csr_matmul] column {} (number {}) is outside [0, {})") {}

  // Calls body(number, column) for the elements of a row in order.
  template <class Body>
  __device__ void for_each(std::int64_t row, const Body& body) const {
    const std::int64_t begin = starts[row], end = starts[row + 1];
    if (end < begin) detail::leave_report(places.report, falling, static_cast<double>(begin), end, row);
    if ((row == 0 && begin != 0) || (row + 1 == rows && end != count))
      detail::leave_report(places.report, wrong_ends, static_cast<double>(starts[0]), starts[rows], count);
    for (std::int64_t i = max(begin, std::int64_t{0}); i < min(end, count); ++i)
      if (const std::int64_t column = places[i]; column >= 0) body(i, column);
  }
};

// One thread for each element of the product.
template <class T>
__global__ void multiply(const Elements a, std::int64_t width, const T* values, const T* b, T* out) {
  using A = accumulator_t<T>;
  for (std::int64_t at = detail::first_index(); at < a.rows * width; at += detail::index_step()) {
    A sum = 0;
    a.for_each(at / width, [&](std::int64_t i, std::int64_t column) {
      sum += static_cast<A>(values[i]) * static_cast<A>(b[column * width + at % width]);
    });
    out[at] = T(sum);
  }
}

// One thread for each element of a row of b; the sums of several rows meet in one place in no fixed order.
template <class T, class A>
__global__ void multiply_transposed(const Elements a, std::int64_t width, const T* values, const T* b, A* sums) {
  for (std::int64_t at = detail::first_index(); at < a.rows * width; at += detail::index_step()) {
    const A factor = static_cast<A>(b[at]);
    a.for_each(at / width, [&](std::int64_t i, std::int64_t column) {
      atomicAdd(&sums[column * width + at % width], static_cast<A>(values[i]) * factor);
    });
  }
}

template <class T, class A>
__global__ void narrow(std::int64_t count, const A* from, T* to) {
  for (std::int64_t i = detail::first_index(); i < count; i += detail::index_step()) to[i] = T(from[i]);
}

// A block for each row: an element's gradient is the product of the rows that it joins.
template <class T>
__global__ void value_gradients(const Elements a, bool transpose, std::int64_t width, const T* dy, const T* b, T* out) {
  using A = accumulator_t<T>;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x)
    a.for_each(row, [&](std::int64_t i, std::int64_t column) {
      const T* const left = dy + (transpose ? column : row) * width;
      const T* const right = b + (transpose ? row : column) * width;
      const A sum =
          sum_values<A>(width, [=](std::int64_t k) { return static_cast<A>(left[k]) * static_cast<A>(right[k]); });
      if (threadIdx.x == 0) out[i] = T(sum);
    });
}

const CsrMatmulAttributes& of(const void* attributes) { return *static_cast<const CsrMatmulAttributes*>(attributes); }

// Inputs: starts, columns, values, b. The workspace takes the sums of small types.
void matmul_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const auto& [shape, transpose] = of(attributes);
  if (out[0].size() == 0) return;
  const Elements a(context, shape, in[0], in[1]);
  const std::int64_t width = out[0].shape[1], total = out[0].size();
  const int blocks = detail::grid_for(a.rows * width);
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[2].dtype, "csr_matmul", [&, transpose = transpose]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const T* const values = in[2].as<const T>();
    const T* const b = in[3].as<const T>();
    if (!transpose) {
      multiply<<<blocks, detail::kThreads, 0, stream>>>(a, width, values, b, out[0].as<T>());
      return;
    }
    A* const sums = static_cast<A*>(std::is_same_v<T, A> ? out[0].data : context.workspace);
    detail::check_cuda(cudaMemsetAsync(sums, 0, static_cast<std::size_t>(total) * sizeof(A), stream), "clearing sums");
    multiply_transposed<<<blocks, detail::kThreads, 0, stream>>>(a, width, values, b, sums);
    if constexpr (!std::is_same_v<T, A>)
      narrow<<<detail::grid_for(total), detail::kThreads, 0, stream>>>(total, sums, out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting csr_matmul");
}

// Inputs: starts, columns, gradient of the product, b.
void backward_values_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                          const void* attributes) {
  const auto& [shape, transpose] = of(attributes);
  if (out[0].size() == 0 || shape[0] == 0) return;
  const Elements a(context, shape, in[0], in[1]);
  const std::int64_t width = in[2].shape[1];
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[2].dtype, "csr_matmul", [&, transpose = transpose]<class T>(TypeTag<T>) {
    value_gradients<<<blocks_for(a.rows), threads_for(width), 0, stream>>>(a, transpose, width, in[2].as<const T>(),
                                                                           in[3].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting csr_matmul_backward_values");
}

}  // namespace

OpDef csr_matmul_on_cuda(OpDef op) { return std::move(op).cuda(matmul_cuda); }
OpDef csr_matmul_backward_values_on_cuda(OpDef op) { return std::move(op).cuda(backward_values_cuda); }

}  // namespace paceline
