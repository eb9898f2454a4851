#pragma once
#include <paceline/ndarray.h>

namespace paceline::detail {

// out = a op(b) + bias in each row; shapes and types as in kernels::gemm, which they were checked for; bias is a
// vector.
void gemm_bias(const NDArray& a, const NDArray& b, bool transpose_b, const NDArray& bias, const NDArray& out);

}  // namespace paceline::detail
