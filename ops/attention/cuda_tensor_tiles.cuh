#pragma once
// The halves of attention that cuda_tiles.cu leaves to tensor cores: float16 and bfloat16.

#include "attention/cuda_matrices.cuh"

namespace paceline {

constexpr std::int64_t kMostColumns = 128;  // of query, key and value

// As the kernels of cuda_tiles.h: outputs out and sums; inputs of the gradient out, sums, gradient, query, key, value
// and mask, outputs the gradients of query, key, value and, where it is wanted, mask. `means`: a number for each row.
void attend_on_tensor_cores(const Scores& scores, const Matrices& value, std::span<const Tensor> out,
                            cudaStream_t stream);
void attend_backward_on_tensor_cores(const Scores& scores, std::span<const Tensor> in, std::span<const Tensor> out,
                                     float* means, cudaStream_t stream);

}  // namespace paceline
