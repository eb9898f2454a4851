#include "triangular/triangular.h"

#include "shared/block.cuh"

namespace paceline {
namespace {

template <class T>
__global__ void keep_triangle(std::int64_t rows, std::int64_t columns, std::int64_t size, bool upper,
                              std::int64_t diagonal, const T* x, T* y) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += step) {
    const std::int64_t right = i % columns - i / columns % rows - diagonal;
    y[i] = (upper ? right >= 0 : right <= 0) ? x[i] : T(0);
  }
}

// Each thread solves for one column. Threads of a warp read one element of `a` together, and neighbours of b and x.
template <class T, class A>
__global__ void solve_columns(TriangularSolveAttributes how, std::int64_t rows, std::int64_t columns,
                              std::int64_t batches, const T* a, const T* b, T* x) {
  const bool downwards = how.upper == how.transpose;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int64_t i = first; i < batches * columns; i += step) {
    const T* const matrix = a + i / columns * rows * rows;
    const std::int64_t column = i / columns * rows * columns + i % columns;
    for (std::int64_t done = 0; done < rows; ++done) {
      const std::int64_t row = downwards ? done : rows - 1 - done;
      A sum = static_cast<A>(detail::load(b[column + row * columns]));
      for (std::int64_t k = 0; k < done; ++k) {
        const std::int64_t other = downwards ? k : rows - 1 - k;
        const T factor = matrix[how.transpose ? other * rows + row : row * rows + other];
        sum -= static_cast<A>(detail::load(factor)) * static_cast<A>(detail::load(x[column + other * columns]));
      }
      if (!how.unit_diagonal) sum /= static_cast<A>(detail::load(matrix[row * rows + row]));
      x[column + row * columns] = detail::convert<T>(sum);
    }
  }
}

void triangle_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const auto& how = *static_cast<const TriangleAttributes*>(attributes);
  const Shape& shape = in[0].shape;
  if (shape.size() == 0) return;
  visit_dtype(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    keep_triangle<T><<<blocks_for((shape.size() + detail::kThreads - 1) / detail::kThreads), detail::kThreads, 0,
                       detail::stream_of(context)>>>(shape[shape.ndim() - 2], shape[shape.ndim() - 1], shape.size(),
                                                     how.upper, how.diagonal, in[0].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting triangle");
}

void triangular_solve_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                           const void* attributes) {
  const auto& how = *static_cast<const TriangularSolveAttributes*>(attributes);
  const Shape& shape = in[1].shape;
  if (shape.size() == 0) return;
  const std::int64_t rows = shape[shape.ndim() - 2], columns = shape[shape.ndim() - 1];
  const std::int64_t batches = shape.size() / (rows * columns);
  constexpr int kWarp = 32;  // a block each: columns are few
  visit_floating(in[1].dtype, "triangular_solve", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
    solve_columns<T, A><<<blocks_for((batches * columns + kWarp - 1) / kWarp), kWarp, 0, detail::stream_of(context)>>>(
        how, rows, columns, batches, in[0].as<const T>(), in[1].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting triangular_solve");
}

}  // namespace

OpDef triangle_on_cuda(OpDef op) { return std::move(op).cuda(triangle_cuda); }
OpDef triangular_solve_on_cuda(OpDef op) { return std::move(op).cuda(triangular_solve_cuda); }

}  // namespace paceline
