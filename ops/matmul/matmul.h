#pragma once
// Matrix product of floating arrays: (m, k) x (k, n), batches (b, m, k) x (b, k, n), or (..., m, k) x (k, n). With
// transpose_a / transpose_b the last two axes of that argument are exchanged first. Throws InvalidArgument when sizes
// or types do not fit.

#include <paceline/op.h>

namespace paceline {

struct MatmulAttributes {
  bool transpose_a = false;  // not for (..., m, k) x (k, n) with more than two axes
  bool transpose_b = false;
};

NDArray matmul(const NDArray& a, const NDArray& b, bool transpose_a = false, bool transpose_b = false);

}  // namespace paceline
