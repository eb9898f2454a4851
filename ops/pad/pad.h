#pragma once
// pad(x, widths, value): `value` before and after the elements of each axis. `widths` has one pair {before, after} for
// each axis, none negative. Any type. Throws InvalidArgument on other widths.

#include <paceline/op.h>

#include <utility>

namespace paceline {

struct PadAttributes {
  std::vector<std::pair<std::int64_t, std::int64_t>> widths;
  double value = 0;
};

NDArray pad(const NDArray& x, std::vector<std::pair<std::int64_t, std::int64_t>> widths, double value = 0);

}  // namespace paceline
