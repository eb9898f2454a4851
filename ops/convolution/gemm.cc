// Convolution as a matrix product. For one example and group, with K = patch() and M places of the result:
//   columns (K, M): the input under each weight of the kernel, zero where it lies in the padding
//   forward          y (out, M)         = weight (out, K) columns (K, M)
//   backward data    columns (K, M)     = weight^T y_gradient, then each column is added to where it was taken from
//   backward weight  w_gradient (out, K) += y_gradient columns^T
// The places are taken in blocks of some rows of the result, so that the columns stay small. float16 and bfloat16 are
// widened to float32 on the way in and rounded once on the way out.
#include "convolution/geometry.h"
#include "shared/lanes.h"

#include <paceline/detail/elementwise.h>

#include <cblas.h>

#include <algorithm>

namespace paceline {
namespace {

struct Matrix {
  CBLAS_TRANSPOSE transpose;
  std::int64_t leading;
};

void gemm(Matrix a, Matrix b, int m, int n, int k, const float* x, const float* y, float beta, float* z, int leading) {
  cblas_sgemm(CblasRowMajor, a.transpose, b.transpose, m, n, k, 1, x, static_cast<int>(a.leading), y,
              static_cast<int>(b.leading), beta, z, leading);
}

void gemm(Matrix a, Matrix b, int m, int n, int k, const double* x, const double* y, double beta, double* z,
          int leading) {
  cblas_dgemm(CblasRowMajor, a.transpose, b.transpose, m, n, k, 1, x, static_cast<int>(a.leading), y,
              static_cast<int>(b.leading), beta, z, leading);
}

// Rows of the result, whose columns are made at once.
std::int64_t rows_of_block(const ConvolutionGeometry& g) {
  constexpr std::int64_t kElements = 1 << 20;
  const std::int64_t row = std::max<std::int64_t>(1, g.patch() * g.result[2]);
  return std::clamp<std::int64_t>(kElements / row, 1, g.result[0] * g.result[1]);
}

// The pieces of the workspace, in elements of the accumulator.
struct Pieces {
  std::int64_t columns, weight, result, gradient;
  explicit Pieces(const ConvolutionGeometry& g)
      : columns(g.patch() * rows_of_block(g) * g.result[2]),
        weight(g.out * g.patch()),
        result(std::max(g.group_out() * g.output_places(), g.group_in() * g.input_places())),
        gradient(g.group_out() * g.output_places()) {}
  std::int64_t total() const { return columns + weight + result + gradient; }
};

template <class T>
class GemmConvolution {
 public:
  using A = accumulator_t<T>;

  GemmConvolution(const ConvolutionGeometry& geometry, const ConvolutionArrays& arrays, void* workspace)
      : g_(geometry), arrays_(arrays) {
    const Pieces pieces(g_);
    columns_ = static_cast<A*>(workspace);
    weight_ = columns_ + pieces.columns;
    result_ = weight_ + pieces.weight;
    gradient_ = result_ + pieces.result;
  }

  void forward() {
    const A* const weight = widened(static_cast<const T*>(arrays_.weight), g_.out * g_.patch(), weight_);
    const std::int64_t places = g_.output_places();
    for_each_group([&](std::int64_t example, std::int64_t group) {
      T* const to = static_cast<T*>(arrays_.y) + (example * g_.out + group * g_.group_out()) * places;
      A* const y = direct(to, result_);
      fill_channels(y, group * g_.group_out(), g_.group_out(), places);
      for_each_block([&](const Block& block) {
        gather(x(example, group), block);
        multiply({CblasNoTrans, g_.patch()}, {CblasNoTrans, block.places}, g_.group_out(), block.places, g_.patch(),
                 weight + group * g_.group_out() * g_.patch(), columns_, 1, y + block.first, places);
      });
      narrow(y, g_.group_out() * places, to);
    });
  }

  void backward_data() {
    const A* const weight = widened(static_cast<const T*>(arrays_.weight), g_.out * g_.patch(), weight_);
    const std::int64_t places = g_.input_places();
    for_each_group([&](std::int64_t example, std::int64_t group) {
      const A* const dy = y_gradient(example, group);
      T* const to = static_cast<T*>(arrays_.x_gradient) + (example * g_.in + group * g_.group_in()) * places;
      A* const dx = direct(to, result_);
      fill_channels(dx, group * g_.group_in(), g_.group_in(), places);
      for_each_block([&](const Block& block) {
        multiply({CblasTrans, g_.patch()}, {CblasNoTrans, g_.output_places()}, g_.patch(), block.places, g_.group_out(),
                 weight + group * g_.group_out() * g_.patch(), dy + block.first, 0, columns_, block.places);
        scatter(dx, block);
      });
      narrow(dx, g_.group_in() * places, to);
    });
  }

  void backward_weight() {
    T* const to = static_cast<T*>(arrays_.weight_gradient);
    A* const dw = direct(to, weight_);
    std::fill_n(dw, g_.out * g_.patch(), A(0));
    for_each_group([&](std::int64_t example, std::int64_t group) {
      const A* const dy = y_gradient(example, group);
      for_each_block([&](const Block& block) {
        gather(x(example, group), block);
        multiply({CblasNoTrans, g_.output_places()}, {CblasTrans, block.places}, g_.group_out(), g_.patch(),
                 block.places, dy + block.first, columns_, 1, dw + group * g_.group_out() * g_.patch(), g_.patch());
      });
    });
    narrow(dw, g_.out * g_.patch(), to);
    if (arrays_.bias_gradient) bias_gradient();
  }

 private:
  // Rows [begin, end) of the result, counted over its first two axes, and the places in them.
  struct Block {
    std::int64_t begin, end;
    std::int64_t first, places;
  };

  template <class Body>
  void for_each_group(const Body& body) {
    for (std::int64_t example = 0; example < g_.examples; ++example)
      for (std::int64_t group = 0; group < g_.groups; ++group) body(example, group);
  }

  template <class Body>
  void for_each_block(const Body& body) {
    const std::int64_t rows = g_.result[0] * g_.result[1], step = rows_of_block(g_);
    for (std::int64_t begin = 0; begin < rows; begin += step) {
      const std::int64_t end = std::min(rows, begin + step);
      body(Block{begin, end, begin * g_.result[2], (end - begin) * g_.result[2]});
    }
  }

  // z (m, n) = x (m, k) y (k, n) + beta z; BLAS refuses some matrices without elements.
  static void multiply(Matrix a, Matrix b, std::int64_t m, std::int64_t n, std::int64_t k, const A* x, const A* y,
                       A beta, A* z, std::int64_t leading) {
    if (m == 0 || n == 0) return;
    if (k > 0)
      gemm(a, b, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), x, y, beta, z,
           static_cast<int>(leading));
    else if (beta == 0)
      for (std::int64_t i = 0; i < m; ++i) std::fill_n(z + i * leading, n, A(0));
  }

  // The bias of channels [first, first + count), or 0.
  void fill_channels(A* to, std::int64_t first, std::int64_t count, std::int64_t places) {
    const T* const bias = static_cast<const T*>(arrays_.bias);
    for (std::int64_t c = 0; c < count; ++c)
      std::fill_n(to + c * places, places, bias ? static_cast<A>(bias[first + c]) : A(0));
  }

  void bias_gradient() {
    const T* const dy = static_cast<const T*>(arrays_.y_gradient);
    const std::int64_t places = g_.output_places();
    for (std::int64_t c = 0; c < g_.out; ++c) {
      A total = 0;
      for (std::int64_t n = 0; n < g_.examples; ++n) {
        const T* const from = dy + (n * g_.out + c) * places;
        total += sum_lanes<A>(places, [from](std::int64_t i) { return static_cast<A>(from[i]); });
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
    return static_cast<const T*>(arrays_.x) + (example * g_.in + group * g_.group_in()) * g_.input_places();
  }

  const A* y_gradient(std::int64_t example, std::int64_t group) {
    const std::int64_t places = g_.output_places();
    const T* from = static_cast<const T*>(arrays_.y_gradient) + (example * g_.out + group * g_.group_out()) * places;
    return widened(from, g_.group_out() * places, gradient_);
  }

  // Calls body(row of columns, offset into the input, first, last, step) for each row of the block under each weight:
  // results [first, last) read the input at offset + i * step, the others lie in the padding.
  template <class Body>
  void for_each_row(const Block& block, const Body& body) {
    A* row = columns_;
    const std::int64_t step = g_.stride[2];
    for (std::int64_t c = 0; c < g_.group_in(); ++c)
      for (std::int64_t kz = 0; kz < g_.kernel[0]; ++kz)
        for (std::int64_t ky = 0; ky < g_.kernel[1]; ++ky)
          for (std::int64_t kx = 0; kx < g_.kernel[2]; ++kx) {
            const std::int64_t shift = kx * g_.dilation[2] - g_.padding[2];
            const std::int64_t first = std::clamp<std::int64_t>((step - 1 - shift) / step, 0, g_.result[2]);
            const std::int64_t beyond = g_.size[2] - shift;
            const std::int64_t last = beyond > 0 ? std::clamp((beyond + step - 1) / step, first, g_.result[2]) : first;
            for (std::int64_t at = block.begin; at < block.end; ++at, row += g_.result[2]) {
              const std::int64_t iz = at / g_.result[1] * g_.stride[0] + kz * g_.dilation[0] - g_.padding[0];
              const std::int64_t iy = at % g_.result[1] * g_.stride[1] + ky * g_.dilation[1] - g_.padding[1];
              const bool inside = iz >= 0 && iz < g_.size[0] && iy >= 0 && iy < g_.size[1];
              body(row, ((c * g_.size[0] + iz) * g_.size[1] + iy) * g_.size[2] + shift, first, inside ? last : first,
                   step);
            }
          }
  }

  void gather(const T* x, const Block& block) {
    for_each_row(block, [&](A* row, std::int64_t offset, std::int64_t first, std::int64_t last, std::int64_t step) {
      std::fill(row, row + first, A(0));
      if (step == 1)
        for (std::int64_t i = first; i < last; ++i) row[i] = static_cast<A>(x[offset + i]);
      else
        for (std::int64_t i = first; i < last; ++i) row[i] = static_cast<A>(x[offset + i * step]);
      std::fill(row + last, row + g_.result[2], A(0));
    });
  }

  void scatter(A* x, const Block& block) {
    for_each_row(block,
                 [&](const A* row, std::int64_t offset, std::int64_t first, std::int64_t last, std::int64_t step) {
                   for (std::int64_t i = first; i < last; ++i) x[offset + i * step] += row[i];
                 });
  }

  const ConvolutionGeometry& g_;
  const ConvolutionArrays& arrays_;
  A *columns_, *weight_, *result_, *gradient_;
};

}  // namespace

std::size_t gemm_convolution_workspace(const ConvolutionGeometry& geometry, DType dtype) {
  const std::size_t element = dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
  return static_cast<std::size_t>(Pieces(geometry).total()) * element;
}

void gemm_convolution(ConvolutionPass pass, const ConvolutionGeometry& geometry, const ConvolutionArrays& arrays,
                      DType dtype, void* workspace) {
  visit_floating(dtype, "convolution", [&]<class T>(TypeTag<T>) {
    GemmConvolution<T> convolution(geometry, arrays, workspace);
    switch (pass) {
      case ConvolutionPass::kForward: return convolution.forward();
      case ConvolutionPass::kBackwardData: return convolution.backward_data();
      case ConvolutionPass::kBackwardWeight: return convolution.backward_weight();
    }
  });
}

}  // namespace paceline
