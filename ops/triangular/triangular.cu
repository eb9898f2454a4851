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

// A warp solves for one column, row after row: its lanes share what is known. `solved` is x, or, in a wider type,
// what x is rounded from.
template <class T, class A>
__global__ void solve_columns(TriangularSolveAttributes how, std::int64_t rows, std::int64_t columns,
                              std::int64_t batches, const T* a, const T* b, A* solved, T* x) {
  const bool downwards = how.upper == how.transpose;
  const unsigned lane = threadIdx.x;
  for (std::int64_t i = blockIdx.x; i < batches * columns; i += gridDim.x) {
    const T* const matrix = a + i / columns * rows * rows;
    const std::int64_t column = i / columns * rows * columns + i % columns;
    for (std::int64_t done = 0; done < rows; ++done) {
      const std::int64_t row = downwards ? done : rows - 1 - done;
      A sum = A(0);
      for (std::int64_t k = lane; k < done; k += kLanes) {
        const std::int64_t other = downwards ? k : rows - 1 - k;
        const T factor = matrix[how.transpose ? other * rows + row : row * rows + other];
        sum += static_cast<A>(detail::load(factor)) * solved[column + other * columns];
      }
      sum = fold_line(sum, Plus());
      if (lane == 0) {
        const std::int64_t at = column + row * columns;
        A value = static_cast<A>(detail::load(b[at])) - sum;
        if (!how.unit_diagonal) value /= static_cast<A>(detail::load(matrix[row * rows + row]));
        solved[at] = value;
        if constexpr (!std::is_same_v<T, A>) x[at] = detail::convert<T>(value);
      }
      __syncwarp();
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
                                                     how.upper, how.within(shape), in[0].as<const T>(), out[0].as<T>());
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
  visit_floating(in[1].dtype, "triangular_solve", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
    A* const solved = static_cast<A*>(std::is_same_v<T, A> ? out[0].data : context.workspace);
    solve_columns<T, A><<<blocks_for(batches * columns), kLanes, 0, detail::stream_of(context)>>>(
        how, rows, columns, batches, in[0].as<const T>(), in[1].as<const T>(), solved, out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting triangular_solve");
}

}  // namespace

OpDef triangle_on_cuda(OpDef op) { return std::move(op).cuda(triangle_cuda); }
OpDef triangular_solve_on_cuda(OpDef op) { return std::move(op).cuda(triangular_solve_cuda); }

}  // namespace paceline
