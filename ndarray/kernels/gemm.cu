#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"
#include "kernels/matrix.h"

#include <paceline/detail/elementwise.cuh>
#include <paceline/detail/tf32.h>

#include <cublas_v2.h>

#include <map>
#include <memory>

namespace paceline::detail {
namespace {

void check_cublas(cublasStatus_t status, const char* what, cudaStream_t stream) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  check_device(stream, what);
  throw Error(str(what, ": ", cublasGetStatusString(status)));
}

struct DestroyHandle {
  void operator()(cublasContext* handle) const { cublasDestroy(handle); }
};

// One per thread and device, as cuBLAS advises: a lane's thread issues to one stream only.
cublasHandle_t handle_for(const KernelContext& context) {
  thread_local std::map<int, std::unique_ptr<cublasContext, DestroyHandle>> handles;
  const cudaStream_t stream = stream_of(context);
  auto& handle = handles[context.device.index];
  if (!handle) {
    cublasHandle_t created = nullptr;
    check_cublas(cublasCreate(&created), "starting cuBLAS", stream);
    handle.reset(created);
  }
  check_cublas(cublasSetStream(handle.get(), stream), "choosing the stream of cuBLAS", stream);
  return handle.get();
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return CUDA_R_64F;
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kBfloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

cublasComputeType_t compute_type(DType dtype) {
  if (dtype == DType::kFloat64) return CUBLAS_COMPUTE_64F;
  return dtype == DType::kFloat32 && tf32_wanted() ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// cuBLAS knows columns only. Where the output is row-major, its transpose b' a' is computed instead: the same memory.
void gemm(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
          const void* attributes) {
  const auto& how = *static_cast<const Gemm*>(attributes);
  const Matrix a = matrix_of(inputs[0], how.transpose_a);
  const Matrix b = matrix_of(inputs[1], how.transpose_b);
  const Matrix c = matrix_of(outputs[0], false);
  const Matrix& left = c.row_major ? b : a;
  const Matrix& right = c.row_major ? a : b;
  const Tensor& left_tensor = inputs[c.row_major ? 1 : 0];
  const Tensor& right_tensor = inputs[c.row_major ? 0 : 1];
  const auto operation = [&](const Matrix& m) { return m.row_major == c.row_major ? CUBLAS_OP_N : CUBLAS_OP_T; };

  const DType dtype = outputs[0].dtype;
  const cudaDataType_t type = type_of(dtype);
  const bool wide = dtype == DType::kFloat64;
  const float alpha = static_cast<float>(how.alpha);
  const float beta = static_cast<float>(how.beta);
  check_cublas(
      cublasGemmStridedBatchedEx(
          handle_for(context), operation(left), operation(right), static_cast<int>(c.row_major ? c.columns : c.rows),
          static_cast<int>(c.row_major ? c.rows : c.columns), static_cast<int>(a.columns),
          wide ? static_cast<const void*>(&how.alpha) : &alpha, left_tensor.data, type, static_cast<int>(left.leading),
          left.batch_stride, right_tensor.data, type, static_cast<int>(right.leading), right.batch_stride,
          wide ? static_cast<const void*>(&how.beta) : &beta, outputs[0].data, type, static_cast<int>(c.leading),
          c.batch_stride, static_cast<int>(c.batch), compute_type(dtype),
          CUBLAS_GEMM_DEFAULT),
      "multiplying matrices", static_cast<cudaStream_t>(context.native_stream));
}

}  // namespace

KernelFunction gemm_cuda() { return gemm; }

}  // namespace paceline::detail
