#include "kernels/cuda_kernels.h"

namespace paceline::detail {

KernelFunction gemm_bias_cuda() { return nullptr; }
KernelFunction gemm_sums_cuda() { return nullptr; }

}  // namespace paceline::detail
