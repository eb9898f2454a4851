#pragma once
#include <paceline/kernel.h>

namespace paceline::detail {

// What cuBLASLt does to a product in the pass that makes it. Relu is not here, because that of cuBLASLt may turn NaN
// into 0.
enum class OnTheWay { kNothing, kGeluTanh };

// What follows the product and its bias. `kernel` works in place on the result, without attributes. It is skipped where
// cuBLASLt has done `on_the_way` in its own pass. Without a kernel, nothing follows.
struct Epilogue {
  OnTheWay on_the_way = OnTheWay::kNothing;
  Kernel kernel{};
};

// out = epilogue(a b + bias), or a b^T with `transpose_b`. The vector `bias` is added to each row and may be none.
// With a bias, one task does all of it where types and layouts allow. The caller has checked shapes and types as
// kernels::gemm() does.
void gemm_bias(const NDArray& a, const NDArray& b, bool transpose_b, const NDArray& bias, const NDArray& out,
               const Epilogue& epilogue = {});

// out = a^T b, and sums = the sums of a's columns. `out` and `sums` are new dense arrays. cuBLASLt does both in one
// pass. Where it has no algorithm, two products do it. Returns false, and does nothing, where there is no cuBLASLt or
// it does not take such arrays.
bool gemm_sums(const NDArray& a, const NDArray& b, const NDArray& out, const NDArray& sums);

}  // namespace paceline::detail
