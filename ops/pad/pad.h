#pragma once
// Padding.

#include <paceline/op.h>

#include <utility>

namespace paceline {

// The arguments of pad().
struct PadAttributes {
  std::vector<std::pair<std::int64_t, std::int64_t>> widths;  // {before, after} for each axis
  double value = 0;                                           // of what is added
};

// x with `value` before and after the elements of each axis. `widths` has a pair {before, after} for each axis, none
// negative. Any type. Throws InvalidArgument on other widths.
NDArray pad(const NDArray& x, std::vector<std::pair<std::int64_t, std::int64_t>> widths, double value = 0);

}  // namespace paceline
