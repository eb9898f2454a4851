#pragma once
// Sets each element to zero with probability `rate` and multiplies the others by 1 / (1 - rate). The mask is a function
// of `seed`, the number `call` holds (one int64; 0 without it) and the element's position only, the same on every
// device, and is computed anew for the gradient: give every call its own seed or number. Throws InvalidArgument unless
// 0 <= rate < 1.

#include <paceline/op.h>

namespace paceline {

struct DropoutAttributes {
  double rate = 0.5;
  std::uint64_t seed = 0;
};

NDArray dropout(const NDArray& x, double rate, std::uint64_t seed, const NDArray& call = NDArray());

}  // namespace paceline
