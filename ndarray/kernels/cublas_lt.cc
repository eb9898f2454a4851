// Products with a bias and an activation, or the gradient of a bias, in one pass on CUDA devices. What cuBLASLt finds
// best for a product is kept, per thread.
#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"
#include "kernels/matrix.h"

#include <paceline/detail/cuda_check.h>
#include <paceline/detail/tf32.h>

#include <cublasLt.h>

#include <array>
#include <bit>
#include <map>
#include <memory>

namespace paceline::detail {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw Error(str(what, ": ", cublasLtGetStatusString(status)));
}

// Errors of a call that did nothing: this version, or this device, does not do what was asked.
bool has_nothing(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* object) const {
    destroy(object);
  }
};
using Handle = std::unique_ptr<cublasLtContext, Destroy<cublasLtDestroy>>;
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::kFloat16) return CUDA_R_16F;
  return dtype == DType::kBfloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

// The largest power of two, up to 256, that divides the address.
std::uint32_t alignment_of(const void* address) {
  return 1u << std::countr_zero(reinterpret_cast<std::uintptr_t>(address) | 256u);
}

struct Operands {
  const void *left, *right;
  void *bias, *out;
};

// The product out = a b in row-major order. cuBLASLt works in column-major order, so it computes out^T = b^T a^T. The
// epilogue adds `bias` to each row of out, before an activation. Or it writes the sums of a's rows to `bias`.
class Product {
 public:
  Product(cublasLtHandle_t handle, cublasLtEpilogue_t epilogue, DType dtype, const Matrix& a, const Matrix& b,
          const Matrix& c, const Operands& data)
      : handle_(handle) {
    const bool rounds = dtype == DType::kFloat32 && tf32_wanted();
    cublasLtMatmulDesc_t description = nullptr;
    check(
        cublasLtMatmulDescCreate(&description, rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "describing a product");
    description_.reset(description);
    set(CUBLASLT_MATMUL_DESC_TRANSA, b.row_major ? CUBLAS_OP_N : CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, a.row_major ? CUBLAS_OP_N : CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, data.bias);
    left_ = layout(dtype, b);
    right_ = layout(dtype, a);
    out_ = layout(dtype, c);
    choose(data);
  }

  // False: cuBLASLt has nothing for this product.
  bool run(const Operands& data, void* workspace, cudaStream_t stream) {
    if (!found_) return false;
    constexpr float kOne = 1, kZero = 0;
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, data.bias);
    const cublasStatus_t status =
        cublasLtMatmul(handle_, description_.get(), &kOne, data.left, left_.get(), data.right, right_.get(), &kZero,
                       data.out, out_.get(), data.out, out_.get(), &best_.algo, workspace, best_.workspaceSize, stream);
    if (has_nothing(status)) return found_ = false;
    check(status, "multiplying matrices in one pass");
    return true;
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, const T& value) {
    check(cublasLtMatmulDescSetAttribute(description_.get(), what, &value, sizeof value), "describing a product");
  }

  static Layout layout(DType dtype, const Matrix& m) {
    cublasLtMatrixLayout_t made = nullptr;
    check(
        cublasLtMatrixLayoutCreate(&made, type_of(dtype), static_cast<std::uint64_t>(m.row_major ? m.columns : m.rows),
                                   static_cast<std::uint64_t>(m.row_major ? m.rows : m.columns), m.leading),
        "describing a matrix");
    return Layout(made);
  }

  void choose(const Operands& data) {
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "choosing a product");
    const Preference preference(made);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(made, what, &value, sizeof value), "choosing a product");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmBiasWorkspace);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(data.left));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(data.right));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(data.out));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(data.out));
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, description_.get(), left_.get(), right_.get(),
                                                                 out_.get(), out_.get(), made, 1, &best_, &found);
    if (has_nothing(status)) return;
    check(status, "choosing a product");
    found_ = found > 0;
  }

  cublasLtHandle_t handle_;
  Description description_;
  Layout left_, right_, out_;
  cublasLtMatmulHeuristicResult_t best_{};
  bool found_ = false;
};

// What each thread keeps for each device. A new product clears all where kMostProducts are kept already.
struct Kept {
  using Key = std::array<std::int64_t, 14>;
  Handle handle;
  std::map<Key, Product> products;
};

// False: cuBLASLt has nothing for this product.
bool found_and_run(const KernelContext& context, cublasLtEpilogue_t epilogue, const Tensor& left, const Tensor& right,
                   const Tensor& bias, const Tensor& out, const Gemm& how) {
  constexpr std::size_t kMostProducts = 1024;
  thread_local std::map<int, Kept> of_devices;
  const Matrix a = matrix_of(left, how.transpose_a), b = matrix_of(right, how.transpose_b), c = matrix_of(out, false);
  const Operands data{right.data, left.data, bias.data, out.data};
  Kept& kept = of_devices[context.device.index];
  if (!kept.handle) {
    cublasLtHandle_t created = nullptr;
    check(cublasLtCreate(&created), "starting cuBLASLt");
    kept.handle.reset(created);
  }
  const Kept::Key key{static_cast<std::int64_t>(out.dtype),
                      epilogue,
                      a.rows,
                      a.columns,
                      a.row_major,
                      a.leading,
                      b.columns,
                      b.row_major,
                      b.leading,
                      c.leading,
                      alignment_of(data.left),
                      alignment_of(data.right),
                      alignment_of(data.bias),
                      alignment_of(data.out)};
  if (kept.products.size() == kMostProducts && kept.products.count(key) == 0) kept.products.clear();
  return kept.products.try_emplace(key, kept.handle.get(), epilogue, out.dtype, a, b, c, data)
      .first->second.run(data, context.workspace, static_cast<cudaStream_t>(context.native_stream));
}

bool in_one_pass(const KernelContext& context, cublasLtEpilogue_t epilogue, std::span<const Tensor> factors,
                 const Tensor& bias, const Tensor& out, const Gemm& how) {
  select_cuda_device(context.device.index);
  try {
    return found_and_run(context, epilogue, factors[0], factors[1], bias, out, how);
  } catch (const Error&) {
    check_device(static_cast<cudaStream_t>(context.native_stream), "multiplying matrices in one pass");
    throw;
  }
}

cublasLtEpilogue_t epilogue_of(OnTheWay what) {
  return what == OnTheWay::kNothing ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
}

// Inputs: a, b, bias.
void gemm_bias(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
               const void* attributes) {
  const auto& [how, epilogue] = *static_cast<const GemmBias*>(attributes);
  const Tensor& out = outputs[0];
  if (in_one_pass(context, epilogue_of(epilogue.on_the_way), inputs, inputs[2], out, how)) {
    if (epilogue.on_the_way != OnTheWay::kNothing) return;
  } else {
    const Tensor rows{inputs[2].data, out.shape, broadcast_strides(inputs[2].shape, inputs[2].strides, out.shape),
                      out.dtype};
    copy_cuda()(context, {&rows, 1}, outputs, nullptr);
    const Gemm onto{how.transpose_a, how.transpose_b, 1, 1};
    gemm_cuda()(context, inputs.first(2), outputs, &onto);
  }
  if (epilogue.kernel.cuda) epilogue.kernel.cuda(context, outputs, outputs, nullptr);
}

// Inputs: a, b; outputs: a^T b, and the sums of a's columns. The workspace has room for a column of ones, as high as a.
// Where cuBLASLt has no algorithm, a^T times this column gives the sums.
void gemm_sums(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
               const void* attributes) {
  const auto& how = *static_cast<const Gemm*>(attributes);
  if (in_one_pass(context, CUBLASLT_EPILOGUE_BGRADB, inputs, outputs[1], outputs[0], how)) return;
  gemm_cuda()(context, inputs, outputs.first(1), &how);
  const Tensor ones{context.workspace, {inputs[0].shape[0], 1}, {1, 1}, inputs[0].dtype};
  const Tensor sums{outputs[1].data, {outputs[1].shape[0], 1}, {1, 1}, outputs[1].dtype};
  const Scalar one{1};
  fill_cuda()(context, {}, {&ones, 1}, &one);
  const std::array factors{inputs[0], ones};
  Gemm adding = how;
  adding.exact = true;
  gemm_cuda()(context, factors, {&sums, 1}, &adding);
}

}  // namespace

KernelFunction gemm_bias_cuda() { return gemm_bias; }
KernelFunction gemm_sums_cuda() { return gemm_sums; }

}  // namespace paceline::detail
