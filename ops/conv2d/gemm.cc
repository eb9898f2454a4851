// Convolution as a matrix product. For one example and group, with K = patch() and M = output_plane():
//   columns (K, M): the input under each weight of the kernel, zero where it lies in the padding
//   forward          y (out, M)         = weight (out, K) columns (K, M)
//   backward data    columns (K, M)     = weight^T y_gradient, then each column is added to where it was taken from
//   backward weight  w_gradient (out, K) += y_gradient columns^T
// float16 and bfloat16 are widened to float32 on the way in and rounded once on the way out.
#include "conv2d/geometry.h"
#include "shared/lanes.h"

#include <paceline/detail/elementwise.h>

#include <cblas.h>

#include <algorithm>

namespace paceline {
namespace {

void multiply(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
              std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c) {
  cblas_sgemm(CblasRowMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1, a,
              static_cast<int>(lda), b, static_cast<int>(ldb), beta, c, static_cast<int>(n));
}

void multiply(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, std::int64_t m, std::int64_t n, std::int64_t k, const double* a,
              std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c) {
  cblas_dgemm(CblasRowMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), 1, a,
              static_cast<int>(lda), b, static_cast<int>(ldb), beta, c, static_cast<int>(n));
}

// The pieces of the workspace, in elements of the accumulator.
struct Pieces {
  std::int64_t columns, weight, result, gradient;
  explicit Pieces(const Conv2dGeometry& g)
      : columns(g.patch() * g.output_plane()),
        weight(g.out * g.patch()),
        result(std::max(g.group_out() * g.output_plane(), g.group_in() * g.input_plane())),
        gradient(g.group_out() * g.output_plane()) {}
  std::int64_t total() const { return columns + weight + result + gradient; }
};

template <class T>
class GemmConvolution {
 public:
  using A = accumulator_t<T>;

  GemmConvolution(const Conv2dGeometry& geometry, const Conv2dArrays& arrays, void* workspace)
      : g_(geometry), arrays_(arrays) {
    const Pieces pieces(g_);
    columns_ = static_cast<A*>(workspace);
    weight_ = columns_ + pieces.columns;
    result_ = weight_ + pieces.weight;
    gradient_ = result_ + pieces.result;
  }

  void forward() {
    const A* const weight = widened(static_cast<const T*>(arrays_.weight), g_.out * g_.patch(), weight_);
    const T* const bias = static_cast<const T*>(arrays_.bias);
    const std::int64_t plane = g_.output_plane();
    for_each_group([&](std::int64_t example, std::int64_t group) {
      gather(x(example, group));
      T* const to = static_cast<T*>(arrays_.y) + (example * g_.out + group * g_.group_out()) * plane;
      A* const y = direct(to, result_);
      for (std::int64_t c = 0; c < g_.group_out(); ++c)
        std::fill_n(y + c * plane, plane, bias ? static_cast<A>(bias[group * g_.group_out() + c]) : A(0));
      multiply(CblasNoTrans, CblasNoTrans, g_.group_out(), plane, g_.patch(),
               weight + group * g_.group_out() * g_.patch(), g_.patch(), columns_, plane, 1, y);
      narrow(y, g_.group_out() * plane, to);
    });
  }

  void backward_data() {
    const A* const weight = widened(static_cast<const T*>(arrays_.weight), g_.out * g_.patch(), weight_);
    for_each_group([&](std::int64_t example, std::int64_t group) {
      multiply(CblasTrans, CblasNoTrans, g_.patch(), g_.output_plane(), g_.group_out(),
               weight + group * g_.group_out() * g_.patch(), g_.patch(), y_gradient(example, group), g_.output_plane(),
               0, columns_);
      T* const to = static_cast<T*>(arrays_.x_gradient) + (example * g_.in + group * g_.group_in()) * g_.input_plane();
      A* const dx = direct(to, result_);
      std::fill_n(dx, g_.group_in() * g_.input_plane(), A(0));
      scatter(dx);
      narrow(dx, g_.group_in() * g_.input_plane(), to);
    });
  }

  void backward_weight() {
    T* const to = static_cast<T*>(arrays_.weight_gradient);
    A* const dw = direct(to, weight_);
    std::fill_n(dw, g_.out * g_.patch(), A(0));
    for_each_group([&](std::int64_t example, std::int64_t group) {
      gather(x(example, group));
      multiply(CblasNoTrans, CblasTrans, g_.group_out(), g_.patch(), g_.output_plane(), y_gradient(example, group),
               g_.output_plane(), columns_, g_.output_plane(), 1, dw + group * g_.group_out() * g_.patch());
    });
    narrow(dw, g_.out * g_.patch(), to);
    bias_gradient();
  }

 private:
  template <class Body>
  void for_each_group(const Body& body) {
    if (g_.out == 0 || g_.in == 0) return;
    for (std::int64_t example = 0; example < g_.examples; ++example)
      for (std::int64_t group = 0; group < g_.groups; ++group) body(example, group);
  }

  void bias_gradient() {
    const T* const dy = static_cast<const T*>(arrays_.y_gradient);
    const std::int64_t plane = g_.output_plane();
    for (std::int64_t c = 0; c < g_.out; ++c) {
      A total = 0;
      for (std::int64_t n = 0; n < g_.examples; ++n) {
        const T* const from = dy + (n * g_.out + c) * plane;
        total += sum_lanes<A>(plane, [from](std::int64_t i) { return static_cast<A>(from[i]); });
      }
      static_cast<T*>(arrays_.bias_gradient)[c] = T(total);
    }
  }

  // The array itself where it has the accumulator's type, else its widened copy.
  static const A* widened(const T* from, std::int64_t count, A* copy) {
    if constexpr (std::is_same_v<T, A>) {
      return from;
    } else {
      for (std::int64_t i = 0; i < count; ++i) copy[i] = static_cast<A>(from[i]);
      return copy;
    }
  }

  static A* direct(T* to, A* other) {
    if constexpr (std::is_same_v<T, A>)
      return to;
    else
      return other;
  }

  static void narrow(const A* from, std::int64_t count, T* to) {
    if constexpr (!std::is_same_v<T, A>)
      for (std::int64_t i = 0; i < count; ++i) to[i] = T(from[i]);
  }

  const T* x(std::int64_t example, std::int64_t group) const {
    return static_cast<const T*>(arrays_.x) + (example * g_.in + group * g_.group_in()) * g_.input_plane();
  }

  const A* y_gradient(std::int64_t example, std::int64_t group) {
    const std::int64_t plane = g_.output_plane();
    const T* from = static_cast<const T*>(arrays_.y_gradient) + (example * g_.out + group * g_.group_out()) * plane;
    return widened(from, g_.group_out() * plane, gradient_);
  }

  // Calls body(row of columns, offset into the input, first, last, step) for each row of results under each weight:
  // results [first, last) read the input at offset + i * step, the others lie in the padding.
  template <class Body>
  void for_each_row(const Body& body) {
    A* row = columns_;
    for (std::int64_t c = 0; c < g_.group_in(); ++c)
      for (std::int64_t ky = 0; ky < g_.kernel[0]; ++ky)
        for (std::int64_t kx = 0; kx < g_.kernel[1]; ++kx)
          for (std::int64_t oy = 0; oy < g_.result[0]; ++oy, row += g_.result[1]) {
            const std::int64_t iy = oy * g_.stride[0] + ky * g_.dilation[0] - g_.padding[0];
            const std::int64_t shift = kx * g_.dilation[1] - g_.padding[1];
            const bool inside = iy >= 0 && iy < g_.size[0];
            const std::int64_t step = g_.stride[1];
            const std::int64_t first = std::clamp<std::int64_t>((step - 1 - shift) / step, 0, g_.result[1]);
            const std::int64_t beyond = g_.size[1] - shift;
            const std::int64_t last =
                inside && beyond > 0 ? std::clamp((beyond + step - 1) / step, first, g_.result[1]) : first;
            body(row, (c * g_.size[0] + iy) * g_.size[1] + shift, first, last, step);
          }
  }

  void gather(const T* x) {
    for_each_row([&](A* row, std::int64_t offset, std::int64_t first, std::int64_t last, std::int64_t step) {
      std::fill(row, row + first, A(0));
      if (step == 1)
        for (std::int64_t i = first; i < last; ++i) row[i] = static_cast<A>(x[offset + i]);
      else
        for (std::int64_t i = first; i < last; ++i) row[i] = static_cast<A>(x[offset + i * step]);
      std::fill(row + last, row + g_.result[1], A(0));
    });
  }

  void scatter(A* x) {
    for_each_row([&](const A* row, std::int64_t offset, std::int64_t first, std::int64_t last, std::int64_t step) {
      for (std::int64_t i = first; i < last; ++i) x[offset + i * step] += row[i];
    });
  }

  const Conv2dGeometry& g_;
  const Conv2dArrays& arrays_;
  A *columns_, *weight_, *result_, *gradient_;
};

}  // namespace

std::size_t conv2d_gemm_workspace(const Conv2dGeometry& geometry, DType dtype) {
  const std::size_t element = dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
  return static_cast<std::size_t>(Pieces(geometry).total()) * element;
}

void conv2d_gemm(Conv2dPass pass, const Conv2dGeometry& geometry, const Conv2dArrays& arrays, DType dtype,
                 void* workspace) {
  visit_floating(dtype, "conv2d", [&]<class T>(TypeTag<T>) {
    GemmConvolution<T> convolution(geometry, arrays, workspace);
    switch (pass) {
      case Conv2dPass::kForward:
        return convolution.forward();
      case Conv2dPass::kBackwardData:
        return convolution.backward_data();
      case Conv2dPass::kBackwardWeight:
        return convolution.backward_weight();
    }
  });
}

}  // namespace paceline
