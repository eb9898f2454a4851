#pragma once
#include <paceline/kernel.h>

namespace paceline::detail {

// What cuBLASLt does to a product on its way out, in the pass that makes it. Not relu, which may make 0 of NaN there.
enum class OnTheWay { kNothing, kGeluTanh };

// What is done to a product with its bias: `kernel` does it, with one array as input and output and no attributes,
// where cuBLASLt does not. None: nothing.
struct Epilogue {
  OnTheWay on_the_way = OnTheWay::kNothing;
  Kernel kernel{};
};

// out = epilogue(a op(b) + bias in each row), in one task where one can; shapes and types as in kernels::gemm, which
// they were checked for; bias is a vector, or none.
void gemm_bias(const NDArray& a, const NDArray& b, bool transpose_b, const NDArray& bias, const NDArray& out,
               const Epilogue& epilogue = {});

// out = a^T b and sums = the sums of a's columns, of dense new arrays: one pass of cuBLASLt's or, where that has no
// algorithm, two products. False, and nothing is done, where there is no cuBLASLt or it does not take such arrays.
bool gemm_sums(const NDArray& a, const NDArray& b, const NDArray& out, const NDArray& sums);

}  // namespace paceline::detail
