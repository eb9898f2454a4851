// cuBLASLt. It takes what its documentation allows and no more.
#include "call.h"
#include "product.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

struct cublasLtContext {};

struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale_type;
  std::array<cublasOperation_t, 2> operations{CUBLAS_OP_N, CUBLAS_OP_N};
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
};

struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading;

  friend bool operator==(const cublasLtMatrixLayoutOpaque_t&, const cublasLtMatrixLayoutOpaque_t&) = default;
};

struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace_bytes = 0;
  std::array<std::uint32_t, 4> alignments{256, 256, 256, 256};
};

namespace {

std::uint64_t alignment_of(const void* address) {
  return std::uint64_t{1} << std::countr_zero(reinterpret_cast<std::uintptr_t>(address) | 256u);
}

template <class T>
cublasStatus_t set(T& field, const void* value, std::size_t bytes) {
  if (!value || bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

// What an algorithm is found for, as it is kept in one.
struct Found {
  std::uint64_t product = 0, workspace_bytes = 0;
  std::array<std::uint64_t, 5> alignments{};  // of a, b, c, d and the bias
  std::uint64_t mark = 0x6c74616c676fu;
};
static_assert(sizeof(Found) == sizeof(cublasLtMatmulAlgo_t));

struct Operands {
  const cublasLtMatmulDescOpaque_t& description;
  const cublasLtMatrixLayoutOpaque_t &a, &b, &c, &d;

  std::uint64_t depth() const { return description.operations[0] == CUBLAS_OP_T ? a.rows : a.columns; }

  cublasStatus_t check() const {
    const bool left = description.operations[0] == CUBLAS_OP_T, right = description.operations[1] == CUBLAS_OP_T;
    if ((left ? a.columns : a.rows) != d.rows || (right ? b.rows : b.columns) != d.columns || c != d ||
        (right ? b.columns : b.rows) != depth())
      return CUBLAS_STATUS_INVALID_VALUE;
    if (description.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !description.bias) return CUBLAS_STATUS_INVALID_VALUE;
    const bool rounds = description.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (a.type != d.type || b.type != d.type || d.type == CUDA_R_64F || (rounds && d.type != CUDA_R_32F))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool paired = (a.leading | b.leading | d.leading) % 2 == 0;
    const bool any = d.type == CUDA_R_32F && !rounds;
    return any || paired ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  }

  std::uint64_t product() const {
    std::uint64_t hash = 14695981039346656037u;
    const auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    for (const cublasOperation_t operation : description.operations) mix(operation);
    mix(description.compute);
    mix(description.epilogue);
    for (const auto* layout : {&a, &b, &d}) {
      mix(layout->type);
      mix(layout->rows);
      mix(layout->columns);
      mix(static_cast<std::uint64_t>(layout->leading));
    }
    return hash;
  }
};

// Does the epilogue leave the product as it is?
bool leaves(cublasLtEpilogue_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

float finished(cublasLtEpilogue_t epilogue, float x) {
  if (epilogue != CUBLASLT_EPILOGUE_GELU_BIAS) return x;
  return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

template <class T>
void multiply(const cuda_emulation::Product& product, float alpha, float beta, cublasLtEpilogue_t epilogue,
              void* bias) {
  T* const vector = static_cast<T*>(bias);
  if (epilogue == CUBLASLT_EPILOGUE_BGRADB) {
    const T* const b = static_cast<const T*>(product.b);
    for (std::int64_t j = 0; j < product.columns; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < product.depth; ++k) sum += cuda_emulation::from(b[product.b_place(k, j)]);
      cuda_emulation::to(vector[j], sum);
    }
  }
  cuda_emulation::multiply<T>(product, alpha, beta, [=](std::int64_t i, std::int64_t, float sum) {
    return leaves(epilogue) ? sum : finished(epilogue, sum + cuda_emulation::from(vector[i]));
  });
}

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusString(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale_type) {
  if (compute == CUBLAS_COMPUTE_64F || scale_type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *description = new cublasLtMatmulDescOpaque_t{compute, scale_type};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) { return destroy(description); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t what,
                                              const void* value, std::size_t bytes) {
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(description->operations[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(description->operations[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(description->bias, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  if (rows == 0 || columns == 0 || leading < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new cublasLtMatrixLayoutOpaque_t{type, rows, columns, leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void* value,
                                                    std::size_t bytes) {
  if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return set(preference->workspace_bytes, value, bytes);
  if (what < CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES || what > CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
    return CUBLAS_STATUS_INVALID_VALUE;
  std::uint32_t& alignment =
      preference->alignments[static_cast<std::size_t>(what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)];
  const cublasStatus_t status = set(alignment, value, bytes);
  return status == CUBLAS_STATUS_SUCCESS && !std::has_single_bit(alignment) ? CUBLAS_STATUS_INVALID_VALUE : status;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  if (!handle || most < 1) return CUBLAS_STATUS_INVALID_VALUE;
  *found = 0;
  const Operands operands{*description, *a, *b, *c, *d};
  const cublasStatus_t status = operands.check();
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  Found algorithm{operands.product(), std::min<std::uint64_t>(preference->workspace_bytes, 4096)};
  std::copy(preference->alignments.begin(), preference->alignments.end(), algorithm.alignments.begin());
  algorithm.alignments[4] = alignment_of(description->bias);
  results[0] = {
      std::bit_cast<cublasLtMatmulAlgo_t>(algorithm), algorithm.workspace_bytes, CUBLAS_STATUS_SUCCESS, 1, {}};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream_handle) {
  if (!handle || !alpha || !beta || !a || !b || !c || !d || !algorithm) return CUBLAS_STATUS_INVALID_VALUE;
  const Operands operands{*description, *a_layout, *b_layout, *c_layout, *d_layout};
  if (const cublasStatus_t status = operands.check(); status != CUBLAS_STATUS_SUCCESS) return status;
  const auto chosen = std::bit_cast<Found>(*algorithm);
  if (chosen.mark != Found().mark || chosen.product != operands.product() || workspace_bytes < chosen.workspace_bytes ||
      (chosen.workspace_bytes > 0 && alignment_of(workspace) < 16) || (chosen.workspace_bytes > 0 && !workspace))
    return CUBLAS_STATUS_INVALID_VALUE;
  const std::array<const void*, 5> addresses{a, b, c, d, description->bias};
  for (std::size_t i = 0; i < addresses.size(); ++i)
    if (alignment_of(addresses[i]) < chosen.alignments[i]) return CUBLAS_STATUS_INVALID_VALUE;

  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  if (keep != 0 && c != d) return CUBLAS_STATUS_NOT_SUPPORTED;
  const cuda_emulation::Product product{.transpose_a = description->operations[0] == CUBLAS_OP_T,
                                        .transpose_b = description->operations[1] == CUBLAS_OP_T,
                                        .rows = static_cast<std::int64_t>(d_layout->rows),
                                        .columns = static_cast<std::int64_t>(d_layout->columns),
                                        .depth = static_cast<std::int64_t>(operands.depth()),
                                        .batch = 1,
                                        .a = a,
                                        .b = b,
                                        .c = d,
                                        .a_leading = a_layout->leading,
                                        .b_leading = b_layout->leading,
                                        .c_leading = d_layout->leading,
                                        .a_stride = 0,
                                        .b_stride = 0,
                                        .c_stride = 0,
                                        .rounds = description->compute == CUBLAS_COMPUTE_32F_FAST_TF32};
  cuda_emulation::Call call;
  cuda_emulation::Stream& stream = call.stream(stream_handle);
  if (call.scheduler.failure(stream.device) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  const auto body = [=, type = d_layout->type, bytes = chosen.workspace_bytes, epilogue = description->epilogue,
                     bias = description->bias] {
    if (bytes > 0) std::memset(workspace, 0x5a, bytes);
    if (type == CUDA_R_16F) return multiply<cuda_emulation::Half>(product, scale, keep, epilogue, bias);
    if (type == CUDA_R_16BF) return multiply<cuda_emulation::Brain>(product, scale, keep, epilogue, bias);
    multiply<float>(product, scale, keep, epilogue, bias);
  };
  call.scheduler.issue(stream, {"cublasLtMatmul", stream.device, cuda_emulation::Reach::kDevice, body});
  return CUBLAS_STATUS_SUCCESS;
}
