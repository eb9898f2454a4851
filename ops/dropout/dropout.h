#pragma once
// Dropout.

#include <paceline/op.h>

namespace paceline {

// The arguments of dropout().
struct DropoutAttributes {
  double rate = 0.5;       // the probability of zero
  std::uint64_t seed = 0;  // of the mask
};

// Sets each element to zero with probability `rate`, and multiplies the others by 1 / (1 - rate). The mask depends only
// on `seed`, the number in `call` (one int64; none: 0) and the element's position, so it is the same on every device.
// The gradient computes it anew. Give every call another seed or number. Throws InvalidArgument unless 0 <= rate < 1.
NDArray dropout(const NDArray& x, double rate, std::uint64_t seed, const NDArray& call = NDArray());

}  // namespace paceline
