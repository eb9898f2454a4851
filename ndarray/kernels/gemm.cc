#include "copy.h"
#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"
#include "kernels/onednn_gemm.h"

#include <paceline/detail/elementwise.h>
#include <paceline/detail/gemm_bias.h>

#include <cblas.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <type_traits>

namespace paceline {
namespace detail {
namespace {

void multiply(CBLAS_ORDER order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, double alpha,
              const float* a, int lda, const float* b, int ldb, double beta, float* c, int ldc) {
  cblas_sgemm(order, ta, tb, m, n, k, static_cast<float>(alpha), a, lda, b, ldb, static_cast<float>(beta), c, ldc);
}

void multiply(CBLAS_ORDER order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, double alpha,
              const double* a, int lda, const double* b, int ldb, double beta, double* c, int ldc) {
  cblas_dgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <class T>
void gemm_as(std::span<const Tensor> inputs, const Tensor& out, const Gemm& how, const T* bias = nullptr) {
  const Matrix a = matrix_of(inputs[0], how.transpose_a);
  const Matrix b = matrix_of(inputs[1], how.transpose_b);
  const Matrix c = matrix_of(out, false);
  // Waking a sleeping team takes as long as some ten million operations.
  constexpr double kWorthATeam = 1.2e7;
  const double operations =
      2.0 * static_cast<double>(c.rows) * static_cast<double>(c.columns) * static_cast<double>(a.columns);
  const TeamScope team(operations < kWorthATeam ? 1 : team_size());
  if constexpr (std::is_same_v<T, float>) {
    // With fewer operations, what oneDNN does before a product takes longer than the product.
    constexpr double kWorthOneDnn = 2e5;
    if (how.alpha == 1 && operations >= kWorthOneDnn &&
        onednn_gemm(a, inputs[0].as<const T>(), b, inputs[1].as<const T>(), c, out.as<T>(), how.beta, bias))
      return;
  }
  if (bias)
    for (std::int64_t row = 0; row < c.rows; ++row) std::copy_n(bias, c.columns, out.as<T>() + row * c.leading);
  const CBLAS_ORDER order = c.row_major ? CblasRowMajor : CblasColMajor;
  const CBLAS_TRANSPOSE ta = a.row_major == c.row_major ? CblasNoTrans : CblasTrans;
  const CBLAS_TRANSPOSE tb = b.row_major == c.row_major ? CblasNoTrans : CblasTrans;
  for (std::int64_t i = 0; i < c.batch; ++i)
    multiply(order, ta, tb, static_cast<int>(c.rows), static_cast<int>(c.columns), static_cast<int>(a.columns),
             how.alpha, inputs[0].as<const T>() + i * a.batch_stride, static_cast<int>(a.leading),
             inputs[1].as<const T>() + i * b.batch_stride, static_cast<int>(b.leading), bias ? 1 : how.beta,
             out.as<T>() + i * c.batch_stride, static_cast<int>(c.leading));
}

void gemm_cpu(const KernelContext&, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
              const void* attributes) {
  const auto& how = *static_cast<const Gemm*>(attributes);
  if (outputs[0].dtype == DType::kFloat32)
    gemm_as<float>(inputs, outputs[0], how);
  else
    gemm_as<double>(inputs, outputs[0], how);
}

// Inputs: a, b, bias.
void gemm_bias_cpu(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                   const void* attributes) {
  const auto& how = *static_cast<const GemmBias*>(attributes);
  gemm_as<float>(inputs, outputs[0], how.product, inputs[2].as<const float>());
  if (how.epilogue.kernel.cpu) how.epilogue.kernel.cpu(context, outputs, outputs, nullptr);
}

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBfloat16; }

// Do the sizes of a product fit into an int, as the libraries take them?
bool fits(std::initializer_list<std::int64_t> sizes) { return std::max(sizes) < (std::int64_t{1} << 31); }

bool is_matrix(const NDArray& array) {
  return is_matrix_layout({nullptr, array.shape(), array.strides(), array.dtype()});
}

}  // namespace
}  // namespace detail

void detail::gemm_bias(const NDArray& a, const NDArray& b, bool transpose_b, const NDArray& bias, const NDArray& out,
                       const Epilogue& epilogue) {
  const bool on_cuda = out.device().kind == DeviceKind::kCuda;
  const bool fused = on_cuda ? gemm_bias_cuda() && out.dtype() != DType::kFloat64 : out.dtype() == DType::kFloat32;
  const bool one_pass = fused && !bias.is_none() && out.size() > 0 && a.size(-1) > 0 && out.is_contiguous() &&
                        bias.is_contiguous() && is_matrix(a) && is_matrix(b) &&
                        fits({a.size(0), a.size(1), b.size(0), b.size(1)});
  if (!one_pass) {
    if (!bias.is_none()) out.copy_from(bias);
    kernels::gemm(a, false, b, transpose_b, out, 1, bias.is_none() ? 0 : 1);
    if (epilogue.kernel.cpu) launch(epilogue.kernel, std::array{out}, std::array{out});
    return;
  }
  if (!on_cuda) prepare_onednn_gemm();
  launch({"gemm_bias", gemm_bias_cpu, gemm_bias_cuda()}, std::array{a, b, bias}, std::array{out},
         std::make_shared<const GemmBias>(GemmBias{{false, transpose_b, 1, 0}, epilogue}),
         {.workspace_bytes = on_cuda ? kGemmBiasWorkspace : 0});
}

bool detail::gemm_sums(const NDArray& a, const NDArray& b, const NDArray& out, const NDArray& sums) {
  if (out.device().kind != DeviceKind::kCuda || !gemm_sums_cuda() || out.dtype() == DType::kFloat64) return false;
  if (a.size() == 0 || b.size() == 0 || !is_matrix(a) || !is_matrix(b)) return false;
  if (!fits({a.size(0), a.size(1), b.size(1)})) return false;
  const std::size_t column = static_cast<std::size_t>(a.size(0)) * size_of(a.dtype());
  launch({"gemm_sums", nullptr, gemm_sums_cuda()}, std::array{a, b}, std::array{out, sums},
         std::make_shared<const Gemm>(Gemm{true, false, 1, 0}),
         {.workspace_bytes = std::max(kGemmBiasWorkspace, column)});
  return true;
}

void kernels::gemm(const NDArray& a, bool transpose_a, const NDArray& b, bool transpose_b, const NDArray& out,
                   double alpha, double beta) {
  using namespace detail;
  const int d = out.ndim();
  require((d == 2 || d == 3) && a.ndim() == d && b.ndim() == d,
          "[gemm] needs three matrices, or three batches of them, got ", a.describe(), ", ", b.describe(), " and ",
          out.describe());
  require(is_floating(out.dtype()) && a.dtype() == out.dtype() && b.dtype() == out.dtype(),
          "[gemm] needs one floating type, got ", a.describe(), ", ", b.describe(), " and ", out.describe());
  const std::int64_t m = a.size(transpose_a ? -1 : -2);
  const std::int64_t k = a.size(transpose_a ? -2 : -1);
  const std::int64_t n = b.size(transpose_b ? -2 : -1);
  require(b.size(transpose_b ? -1 : -2) == k && out.size(-2) == m && out.size(-1) == n &&
              (d == 2 || (a.size(0) == out.size(0) && b.size(0) == out.size(0))),
          "[gemm] shapes ", a.shape(), transpose_a ? " transposed" : "", " and ", b.shape(),
          transpose_b ? " transposed" : "", " do not multiply to ", out.shape());
  require(fits({m, n, k}), "[gemm] sizes of 2^31 and more are not supported");
  if (out.size() == 0) return;
  if (k == 0) return beta == 0 ? out.fill(0) : scale(beta, out);

  const bool in_float = is_half(out.dtype()) && out.device().kind != DeviceKind::kCuda;
  if (in_float || !is_matrix(out) || overlap(out, a) || overlap(out, b)) {
    NDArray result(out.shape(), in_float ? DType::kFloat32 : out.dtype(), out.device(), out.engine());
    if (beta != 0) result.copy_from(out);
    gemm(in_float ? a.cast(DType::kFloat32) : a, transpose_a, in_float ? b.cast(DType::kFloat32) : b, transpose_b,
         result, alpha, beta);
    return out.copy_from(result);
  }
  if (out.dtype() == DType::kFloat32 && out.device().kind != DeviceKind::kCuda) prepare_onednn_gemm();
  const NDArray inputs[] = {is_matrix(a) ? a : a.clone(), is_matrix(b) ? b : b.clone(), out};
  const NDArray outputs[] = {out};
  launch({"gemm", gemm_cpu, gemm_cuda()}, std::span(inputs).first(beta == 0 ? 2 : 3), outputs,
         std::make_shared<const Gemm>(Gemm{transpose_a, transpose_b, alpha, beta}));
}

}  // namespace paceline
