#pragma once
// slice(x, axis, begin, end, step): every step-th of the elements [begin, end) along one axis. A view: shares x's
// memory. Negative positions count from the back; `end` beyond the size means the size. The step is positive: flip()
// turns an axis around. Throws InvalidArgument when begin > end or outside.

#include <paceline/op.h>

#include <limits>

namespace paceline {

struct SliceAttributes {
  int axis = 0;
  std::int64_t begin = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
  std::int64_t step = 1;
};

NDArray slice(const NDArray& x, int axis, std::int64_t begin,
              std::int64_t end = std::numeric_limits<std::int64_t>::max(), std::int64_t step = 1);

struct SplitAttributes {
  int axis = 0;
  std::vector<std::int64_t> sizes = {};
};

// Cuts x into `parts` equal slices along `axis`; throws InvalidArgument if the size is not divisible. The gradient of x
// is written part by part, where slices would each make one of x's whole size.
std::vector<NDArray> split(const NDArray& x, int parts, int axis);
// Cuts x into slices of these sizes; throws InvalidArgument unless they make up the axis.
std::vector<NDArray> split(const NDArray& x, const std::vector<std::int64_t>& sizes, int axis);

}  // namespace paceline
