#pragma once
// flip(x, axes): the elements in reverse order along each axis given (negative: from the back); none given: all axes.
// Any type. Throws InvalidArgument on wrong or repeated axes.

#include <paceline/op.h>

namespace paceline {

struct FlipAttributes {
  std::vector<int> axes;
};

NDArray flip(const NDArray& x, std::vector<int> axes = {});

}  // namespace paceline
