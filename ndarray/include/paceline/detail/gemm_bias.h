#pragma once
#include <paceline/ndarray.h>

namespace paceline::detail {

// out = a op(b) + bias in each row; shapes and types as in kernels::gemm, which they were checked for; bias is a
// vector.
void gemm_bias(const NDArray& a, const NDArray& b, bool transpose_b, const NDArray& bias, const NDArray& out);

// out = a^T b and sums = the sums of a's columns, of dense new arrays: one pass of cuBLASLt's or, where that has no
// algorithm, two products. False, and nothing is done, where there is no cuBLASLt or it does not take such arrays.
bool gemm_sums(const NDArray& a, const NDArray& b, const NDArray& out, const NDArray& sums);

}  // namespace paceline::detail
