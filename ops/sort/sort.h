#pragma once
// Order along an axis. Equal elements keep their order; NaN is larger than every number. Both functions give the
// elements and their int64 positions along the axis, and pass gradients to the elements taken. Throw InvalidArgument on
// a wrong axis or count.

#include <paceline/op.h>

namespace paceline {

struct SortAttributes {
  int axis = -1;
  bool descending = false;
};
struct TopKAttributes {
  std::int64_t k = 1;
  int axis = -1;
  bool largest = true;
};
struct Sorted {
  NDArray values;
  NDArray positions;
};

Sorted sort(const NDArray& x, int axis = -1, bool descending = false);
NDArray argsort(const NDArray& x, int axis = -1, bool descending = false);
// The k largest (or smallest) elements, the most extreme one first.
Sorted top_k(const NDArray& x, std::int64_t k, int axis = -1, bool largest = true);

}  // namespace paceline
