#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"
#include "kernels/matrix.h"

#include <paceline/detail/device_runtime.h>
#include <paceline/detail/tf32.h>
#include <paceline/detail/elementwise.cuh>

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

// cuBLAS's for one stream, with memory of its own: what cuBLAS has is not for a stream that is recorded for a graph.
class Handle {
 public:
  Handle(Device device, cudaStream_t stream) : device_(device), stream_(stream) {
    check_cublas(cublasCreate(&handle_), "starting cuBLAS", stream);
    check_cublas(cublasSetStream(handle_, stream), "choosing the stream of cuBLAS", stream);
  }
  ~Handle() {
    cublasDestroy(handle_);  // waits for the device
    try {
      if (workspace_) runtime(device_).release(workspace_, bytes_, MemoryKind::kNormal, nullptr);
    } catch (const Error&) {
      // The device is lost, and its memory with it.
    }
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  cudaStream_t stream() const { return stream_; }
  cublasHandle_t get() {
    if (!asked_) take_workspace();
    return handle_;
  }

 private:
  // As much as cuBLAS advises. Without it, where there is no room, it works all the same.
  void take_workspace() {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream_, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone) return;
    asked_ = true;
    int device = 0, major = 0;
    check_cuda(cudaGetDevice(&device), "asking for the device");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the device");
    bytes_ = std::size_t{major >= 9 ? 32u : 4u} << 20;
    try {
      workspace_ = runtime(device_).allocate(bytes_, MemoryKind::kNormal, nullptr);
    } catch (const OutOfMemory&) {
      return;
    }
    check_cublas(cublasSetWorkspace(handle_, workspace_, bytes_), "giving cuBLAS memory", stream_);
  }

  const Device device_;
  const cudaStream_t stream_;
  cublasHandle_t handle_ = nullptr;
  bool asked_ = false;
  void* workspace_ = nullptr;
  std::size_t bytes_ = 0;
};

// One per thread and device, as cuBLAS advises: a lane's thread issues to one stream only.
cublasHandle_t handle_for(const KernelContext& context) {
  thread_local std::map<int, std::unique_ptr<Handle>> handles;
  const cudaStream_t stream = stream_of(context);
  auto& handle = handles[context.device.index];
  if (!handle || handle->stream() != stream) handle = std::make_unique<Handle>(context.device, stream);
  return handle->get();
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return CUDA_R_64F;
    case DType::kFloat16: return CUDA_R_16F;
    case DType::kBfloat16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

cublasComputeType_t compute_type(DType dtype, bool exact) {
  if (dtype == DType::kFloat64) return CUBLAS_COMPUTE_64F;
  return dtype == DType::kFloat32 && !exact && tf32_wanted() ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
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
          c.batch_stride, static_cast<int>(c.batch), compute_type(dtype, how.exact), CUBLAS_GEMM_DEFAULT),
      "multiplying matrices", static_cast<cudaStream_t>(context.native_stream));
}

}  // namespace

KernelFunction gemm_cuda() { return gemm; }

}  // namespace paceline::detail
