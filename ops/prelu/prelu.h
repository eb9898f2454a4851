#pragma once
// prelu(x, slope): x > 0 ? x : slope * x with a learned slope: one number for all, or (channels), one for each position
// along axis 1 of x. Floating types. Throws InvalidArgument when types differ or the slope has another size.

#include <paceline/op.h>

namespace paceline {

NDArray prelu(const NDArray& x, const NDArray& slope);

}  // namespace paceline
