#pragma once
// The CUDA halves of the kernels in this folder. Each is defined by the .cu file beside its .cc; a build without CUDA
// takes no_cuda_kernels.cc instead, where all of them are null. Those of cuBLASLt are null without it, too.

#include <paceline/kernel.h>

namespace paceline::detail {

KernelFunction fill_cuda();
KernelFunction copy_cuda();
KernelFunction add_cuda();
KernelFunction axpy_cuda();
KernelFunction scale_cuda();
KernelFunction sum_of_cuda();
KernelFunction reduce_sum_cuda();
KernelFunction sum_of_squares_cuda();
KernelFunction gemm_cuda();
// cuBLASLt's: float32, float16, bfloat16; row-major output.
KernelFunction gemm_bias_cuda();
KernelFunction gemm_sums_cuda();
inline constexpr std::size_t kGemmBiasWorkspace = std::size_t{4} << 20;  // bytes that they take
KernelFunction fill_uniform_cuda();
KernelFunction fill_normal_cuda();
KernelFunction scatter_add_cuda();

}  // namespace paceline::detail
