// The emulated cuBLASLt refuses what cuBLASLt does not allow.
#include <cublasLt.h>

#include <gtest/gtest.h>

#include <array>

namespace {

constexpr int kSize = 4, kWorkspace = 1024;

class CudaEmulationLt : public testing::Test {
 protected:
  CudaEmulationLt() {
    succeeds(cublasLtCreate(&handle_));
    succeeds(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    succeeds(cublasLtMatrixLayoutCreate(&square_, CUDA_R_32F, kSize, kSize, kSize));
    succeeds(cublasLtMatmulPreferenceCreate(&preference_));
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory_), kSize * kSize * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&bias_), kSize * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&workspace_, 2 * kWorkspace), cudaSuccess);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_);
    const std::uint64_t bytes = kWorkspace;
    succeeds(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                  sizeof bytes));
  }
  ~CudaEmulationLt() override {
    cudaDeviceSynchronize();
    for (void* memory : {static_cast<void*>(memory_), static_cast<void*>(bias_), workspace_}) cudaFree(memory);
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatrixLayoutDestroy(square_);
    cublasLtMatmulDescDestroy(product_);
    cublasLtDestroy(handle_);
  }

  static void succeeds(cublasStatus_t status) { ASSERT_EQ(status, CUBLAS_STATUS_SUCCESS); }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, const T& value) {
    succeeds(cublasLtMatmulDescSetAttribute(product_, what, &value, sizeof value));
  }
  cublasStatus_t choose(cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t d) {
    int found = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle_, product_, a, b, d, d, preference_, 1, &chosen_, &found);
  }
  cublasStatus_t run(float* memory, void* workspace, std::size_t bytes) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle_, product_, &one, memory, square_, memory, square_, &zero, memory, square_, memory,
                          square_, &chosen_.algo, workspace, bytes, nullptr);
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t square_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
  float *memory_ = nullptr, *bias_ = nullptr;
  void* workspace_ = nullptr;
};

TEST_F(CudaEmulationLt, DescriptionsAreChecked) {
  const std::int64_t wide = CUBLAS_OP_T;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide),
            CUBLAS_STATUS_INVALID_VALUE);
  const std::uint32_t alignment = 12;
  EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment,
                                                 sizeof alignment),
            CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatrixLayout_t layout = nullptr;
  EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 4, 2, 3), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CudaEmulationLt, MatricesMustFitAndABiasMustBeThere) {
  cublasLtMatrixLayout_t low = nullptr;
  succeeds(cublasLtMatrixLayoutCreate(&low, CUDA_R_32F, 2, kSize, kSize));
  EXPECT_EQ(choose(square_, square_, square_), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(choose(low, square_, low), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(choose(low, square_, square_), CUBLAS_STATUS_INVALID_VALUE);
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  EXPECT_EQ(choose(low, square_, low), CUBLAS_STATUS_INVALID_VALUE);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<float*>(nullptr));
  EXPECT_EQ(choose(square_, square_, square_), CUBLAS_STATUS_INVALID_VALUE);
  succeeds(cublasLtMatrixLayoutDestroy(low));
}

TEST_F(CudaEmulationLt, AnAlgorithmIsForOneProductItsAlignmentAndItsWorkspace) {
  succeeds(choose(square_, square_, square_));
  EXPECT_EQ(run(memory_, workspace_, kWorkspace), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(memory_, workspace_, kWorkspace - 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(memory_, nullptr, kWorkspace), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(memory_, static_cast<char*>(workspace_) + 8, kWorkspace), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(memory_ + 1, workspace_, kWorkspace), CUBLAS_STATUS_INVALID_VALUE);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_ + 1);
  EXPECT_EQ(run(memory_, workspace_, kWorkspace), CUBLAS_STATUS_INVALID_VALUE);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_);
  set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
  EXPECT_EQ(run(memory_, workspace_, kWorkspace), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
