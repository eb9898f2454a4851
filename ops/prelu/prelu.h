#pragma once
// ReLU with a learned slope.

#include <paceline/op.h>

namespace paceline {

// x > 0 ? x : slope * x. The slope is one number for all, or (channels): one for each position along axis 1 of x.
// Floating types. Throws InvalidArgument where types differ or the slope has another size.
NDArray prelu(const NDArray& x, const NDArray& slope);

}  // namespace paceline
