// cuBLAS.
#include "call.h"
#include "product.h"

#include <algorithm>
#include <cstring>

struct cublasContext {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

namespace {

template <class T, class Sum>
void multiply(const cuda_emulation::Product& product, Sum alpha, Sum beta) {
  cuda_emulation::multiply<T>(product, alpha, beta, [](std::int64_t, std::int64_t, Sum sum) { return sum; });
}

}  // namespace

const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS            ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_INVALID_VALUE    ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
                                                    : "CUBLAS_STATUS_NOT_SUPPORTED";
}

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->workspace = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t operation_a,
                                          cublasOperation_t operation_b, int rows, int columns, int depth,
                                          const void* alpha, const void* a, cudaDataType_t a_type, int a_leading,
                                          long long a_stride, const void* b, cudaDataType_t b_type, int b_leading,
                                          long long b_stride, const void* beta, void* c, cudaDataType_t c_type,
                                          int c_leading, long long c_stride, int batch, cublasComputeType_t compute,
                                          cublasGemmAlgo_t) {
  if (a_type != c_type || b_type != c_type || (compute == CUBLAS_COMPUTE_64F) != (c_type == CUDA_R_64F))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool transpose_a = operation_a == CUBLAS_OP_T, transpose_b = operation_b == CUBLAS_OP_T;
  if (rows < 0 || columns < 0 || depth < 0 || batch < 0 || c_leading < std::max(1, rows) ||
      a_leading < std::max(1, transpose_a ? depth : rows) || b_leading < std::max(1, transpose_b ? columns : depth))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool rounds = compute == CUBLAS_COMPUTE_32F_FAST_TF32 && c_type == CUDA_R_32F;
  const cuda_emulation::Product product{transpose_a, transpose_b, rows,      columns,  depth,    batch,    a,     b, c,
                                        a_leading,   b_leading,   c_leading, a_stride, b_stride, c_stride, rounds};
  std::function<void()> body;
  if (c_type == CUDA_R_64F)
    body = [=, alpha = *static_cast<const double*>(alpha), beta = *static_cast<const double*>(beta)] {
      multiply<double>(product, alpha, beta);
    };
  else
    body = [=, alpha = *static_cast<const float*>(alpha), beta = *static_cast<const float*>(beta)] {
      if (c_type == CUDA_R_16F) return multiply<cuda_emulation::Half>(product, alpha, beta);
      if (c_type == CUDA_R_16BF) return multiply<cuda_emulation::Brain>(product, alpha, beta);
      multiply<float>(product, alpha, beta);
    };
  cuda_emulation::Call call;
  cuda_emulation::Stream& stream = call.stream(handle->stream);
  if (call.scheduler.failure(stream.device) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (stream.graph && !handle->workspace) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto with_workspace = [body, workspace = handle->workspace,
                               bytes = std::min<std::size_t>(handle->workspace_bytes, 64)] {
    if (workspace) std::memset(workspace, 0x5a, bytes);
    body();
  };
  call.scheduler.issue(stream, {"cublasGemm", stream.device, cuda_emulation::Reach::kDevice, with_workspace});
  return CUBLAS_STATUS_SUCCESS;
}
