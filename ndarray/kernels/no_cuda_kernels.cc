#include "kernels/cuda_kernels.h"

namespace paceline::detail {

KernelFunction fill_cuda() { return nullptr; }
KernelFunction copy_cuda() { return nullptr; }
KernelFunction add_cuda() { return nullptr; }
KernelFunction axpy_cuda() { return nullptr; }
KernelFunction scale_cuda() { return nullptr; }
KernelFunction sum_of_cuda() { return nullptr; }
KernelFunction reduce_sum_cuda() { return nullptr; }
KernelFunction sum_of_squares_cuda() { return nullptr; }
KernelFunction gemm_cuda() { return nullptr; }
KernelFunction fill_uniform_cuda() { return nullptr; }
KernelFunction fill_normal_cuda() { return nullptr; }
KernelFunction scatter_add_cuda() { return nullptr; }

}  // namespace paceline::detail
