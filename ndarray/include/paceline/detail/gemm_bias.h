#pragma once
#include <paceline/ndarray.h>

namespace paceline::detail {

// out = a op(b) + bias in each row; shapes and types as in kernels::gemm, which they were checked for; bias is a
// vector.
void gemm_bias(const NDArray& a, const NDArray& b, bool transpose_b, const NDArray& bias, const NDArray& out);

// out = a^T b and sums = the sums of a's columns, of dense new arrays, where the device has one pass for both. False:
// it has none, and nothing is done.
bool gemm_sums(const NDArray& a, const NDArray& b, const NDArray& out, const NDArray& sums);

}  // namespace paceline::detail
