#include "triangular/triangular.h"

#include "matmul/matmul.h"
#include "unary/unary.h"

#include <paceline/detail/elementwise.h>

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace paceline {

const OpDef& triangle_operator();
const OpDef& triangular_solve_operator();

namespace {

void triangle_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const auto& how = *static_cast<const TriangleAttributes*>(attributes);
  const std::int64_t rows = in[0].shape[in[0].shape.ndim() - 2], columns = in[0].shape[in[0].shape.ndim() - 1];
  const std::int64_t diagonal = how.within(in[0].shape);
  if (in[0].size() == 0) return;
  visit_dtype(in[0].dtype, [&, upper = how.upper]<class T>(TypeTag<T>) {
    const std::int64_t smallest = std::max<std::int64_t>(1, 65536 / columns);
    detail::parallel_ranges(in[0].size() / columns, smallest, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t line = begin; line < end; ++line) {
        const T* x = in[0].as<const T>() + line * columns;
        T* y = out[0].as<T>() + line * columns;
        const std::int64_t past = std::clamp<std::int64_t>(line % rows + diagonal + (upper ? 0 : 1), 0, columns);
        const std::int64_t first = upper ? past : 0, last = upper ? columns : past;
        std::fill_n(y, first, T(0));
        std::copy(x + first, x + last, y + first);
        std::fill_n(y + last, columns - last, T(0));
      }
    });
  });
}

void solve(const TriangularSolveAttributes& how, int rows, int columns, const float* a, float* x) {
  cblas_strsm(CblasRowMajor, CblasLeft, how.upper ? CblasUpper : CblasLower, how.transpose ? CblasTrans : CblasNoTrans,
              how.unit_diagonal ? CblasUnit : CblasNonUnit, rows, columns, 1, a, rows, x, columns);
}

void solve(const TriangularSolveAttributes& how, int rows, int columns, const double* a, double* x) {
  cblas_dtrsm(CblasRowMajor, CblasLeft, how.upper ? CblasUpper : CblasLower, how.transpose ? CblasTrans : CblasNoTrans,
              how.unit_diagonal ? CblasUnit : CblasNonUnit, rows, columns, 1, a, rows, x, columns);
}

void triangular_solve_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                          const void* attributes) {
  const auto& how = *static_cast<const TriangularSolveAttributes*>(attributes);
  const std::int64_t rows = in[1].shape[in[1].shape.ndim() - 2], columns = in[1].shape[in[1].shape.ndim() - 1];
  const std::int64_t batches = in[1].size() == 0 ? 0 : in[1].size() / (rows * columns);
  visit_floating(in[1].dtype, "triangular_solve", [&]<class T>(TypeTag<T>) {
    using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
    std::vector<A> wide_a, wide_x;
    for (std::int64_t i = 0; i < batches; ++i) {
      const T* const a = in[0].as<const T>() + i * rows * rows;
      const T* const b = in[1].as<const T>() + i * rows * columns;
      T* const x = out[0].as<T>() + i * rows * columns;
      if constexpr (std::is_same_v<T, A>) {
        std::copy_n(b, rows * columns, x);
        solve(how, static_cast<int>(rows), static_cast<int>(columns), a, x);
      } else {
        wide_a.assign(a, a + rows * rows);
        wide_x.assign(b, b + rows * columns);
        solve(how, static_cast<int>(rows), static_cast<int>(columns), wide_a.data(), wide_x.data());
        std::transform(wide_x.begin(), wide_x.end(), x, [](A value) { return T(value); });
      }
    }
  });
}

std::vector<ArraySpec> solution(const std::vector<NDArray>& inputs, const void*) {
  const NDArray& a = inputs[0];
  const NDArray& b = inputs[1];
  const auto refuse = [&](auto... expected) {
    throw InvalidArgument(
        str("[triangular_solve] a is ", a.describe(), " and b ", b.describe(), ", expected ", expected...));
  };
  if (!is_floating(a.dtype()) || a.dtype() != b.dtype()) refuse("one floating type");
  if (a.ndim() < 2 || a.ndim() != b.ndim()) refuse("as many axes, at least two");
  if (a.size(-1) != a.size(-2) || a.size(-1) != b.size(-2)) refuse("(..., n, n) and (..., n, k)");
  for (int axis = 0; axis + 2 < a.ndim(); ++axis)
    if (a.size(axis) != b.size(axis)) refuse("the same leading axes");
  if (std::max(b.size(-2), b.size(-1)) > std::numeric_limits<int>::max()) refuse("sizes below 2^31");
  return {{b.shape(), b.dtype()}};
}

}  // namespace

OpDef triangle_op() {
  return OpDef("triangle")
      .attributes<TriangleAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        require(inputs[0].ndim() >= 2, "[triangle] x is ", inputs[0].describe(), ", expected at least two axes");
        return std::vector<ArraySpec>{{inputs[0].shape(), inputs[0].dtype()}};
      })
      .cpu(triangle_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(triangle_operator(), {gradients[0]}, call.attributes<TriangleAttributes>())};
      })
      .text([](const void* attributes) {
        const auto& [upper, diagonal] = *static_cast<const TriangleAttributes*>(attributes);
        return AttributeText{{"upper", upper ? "1" : "0"}, {"diagonal", str(diagonal)}};
      });
}

NDArray tril(const NDArray& x, std::int64_t diagonal) {
  return invoke(triangle_operator(), {x}, TriangleAttributes{false, diagonal});
}
NDArray triu(const NDArray& x, std::int64_t diagonal) {
  return invoke(triangle_operator(), {x}, TriangleAttributes{true, diagonal});
}

OpDef triangular_solve_op() {
  return OpDef("triangular_solve")
      .attributes<TriangularSolveAttributes>()
      .input("a")
      .input("b")
      .saves_inputs({0})
      .saves_outputs({0})
      .infer(solution)
      .cpu(triangular_solve_cpu)
      // On CUDA: what is solved so far, in the type that it is solved in.
      .workspace([](const std::vector<NDArray>& inputs, const void*) {
        const NDArray& b = inputs[1];
        const bool needed = b.device().kind == DeviceKind::kCuda && size_of(b.dtype()) < sizeof(float);
        return needed ? static_cast<std::size_t>(b.size()) * sizeof(float) : 0;
      })
      // With x = a^-1 b: db = a^-T dx, da = -db x^T in the triangle (Giles 2008, 2.3.1).
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const auto& how = call.attributes<TriangularSolveAttributes>();
        TriangularSolveAttributes back = how;
        back.transpose = !how.transpose;
        const NDArray of_b = triangular_solve(call.inputs[0], gradients[0], back);
        if (!call.wants_gradient(0)) return {{}, of_b};
        const NDArray& x = call.outputs[0];
        const NDArray product = how.transpose ? batch_matmul(x, of_b, false, true) : batch_matmul(of_b, x, false, true);
        const std::int64_t beside = how.unit_diagonal ? 1 : 0;
        const NDArray of_a = how.upper ? triu(product, beside) : tril(product, -beside);
        return {negative(of_a), of_b};
      })
      .text([](const void* attributes) {
        const auto& how = *static_cast<const TriangularSolveAttributes*>(attributes);
        return AttributeText{{"upper", how.upper ? "1" : "0"},
                             {"transpose", how.transpose ? "1" : "0"},
                             {"unit_diagonal", how.unit_diagonal ? "1" : "0"}};
      });
}

NDArray triangular_solve(const NDArray& a, const NDArray& b, const TriangularSolveAttributes& options) {
  return invoke(triangular_solve_operator(), {a, b}, options);
}

}  // namespace paceline
