#pragma once
// where(condition, a, b): elements of a where the condition holds, else of b. `condition` is bool; a and b of other
// types are converted to result_type() (binary.h); the three shapes broadcast. What is not chosen gets gradient 0,
// whatever it is (NaN included). Throws InvalidArgument on other types, or shapes that do not broadcast.

#include <paceline/number.h>
#include <paceline/op.h>

namespace paceline {

NDArray where(const NDArray& condition, const NDArray& a, const NDArray& b);
NDArray where(const NDArray& condition, const NDArray& a, Number b);
NDArray where(const NDArray& condition, Number a, const NDArray& b);

}  // namespace paceline
