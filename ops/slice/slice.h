#pragma once
// Parts of an array along one axis.

#include <paceline/op.h>

#include <limits>

namespace paceline {

// The arguments of slice().
struct SliceAttributes {
  int axis = 0;                                                 // negative: from the back
  std::int64_t begin = 0;                                       // the first element; negative: from the back
  std::int64_t end = std::numeric_limits<std::int64_t>::max();  // behind the last; negative: from the back
  std::int64_t step = 1;                                        // from one element to the next, positive
};

// Every step-th of the elements [begin, end) along one axis. A view: shares the memory of x. Negative positions count
// from the back, and an `end` beyond the size means the size. The step is positive: flip() turns an axis around. Throws
// InvalidArgument where begin > end, or begin is outside.
NDArray slice(const NDArray& x, int axis, std::int64_t begin,
              std::int64_t end = std::numeric_limits<std::int64_t>::max(), std::int64_t step = 1);

// The arguments of split().
struct SplitAttributes {
  int axis = 0;                          // negative: from the back
  std::vector<std::int64_t> sizes = {};  // of the parts
};

// Cuts x into `parts` equal slices along `axis`, which are views. Throws InvalidArgument where the size is not
// divisible. The gradient of x is written part by part, where each slice() would make one of the whole size.
std::vector<NDArray> split(const NDArray& x, int parts, int axis);
// Cuts x into slices of these sizes, which are views. Throws InvalidArgument unless they add up to the size of the
// axis.
std::vector<NDArray> split(const NDArray& x, const std::vector<std::int64_t>& sizes, int axis);

}  // namespace paceline
