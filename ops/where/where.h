#pragma once
// Choice by a condition.

#include <paceline/number.h>
#include <paceline/op.h>

namespace paceline {

// Elements of a where the condition holds, else of b. `condition` is bool. a and b are converted to result_type()
// (binary.h) where their types differ. The three shapes broadcast. What is not chosen gets gradient 0, even where it is
// NaN. Throws InvalidArgument on other types, and on shapes that do not broadcast.
NDArray where(const NDArray& condition, const NDArray& a, const NDArray& b);
NDArray where(const NDArray& condition, const NDArray& a, Number b);
NDArray where(const NDArray& condition, Number a, const NDArray& b);

}  // namespace paceline
