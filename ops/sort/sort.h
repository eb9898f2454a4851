#pragma once
// Order along an axis. Equal elements keep their order; NaN is larger than every number. Gradients go to the elements
// that are taken. Functions throw InvalidArgument on a wrong axis or number.

#include <paceline/op.h>

namespace paceline {

// The arguments of sort() and argsort().
struct SortAttributes {
  int axis = -1;            // negative: from the back
  bool descending = false;  // the largest first
};
// The arguments of top_k().
struct TopKAttributes {
  std::int64_t k = 1;   // how many
  int axis = -1;        // negative: from the back
  bool largest = true;  // the largest, instead of the smallest
};
// Elements in order.
struct Sorted {
  NDArray values;     // of the type of x
  NDArray positions;  // int64, along the axis
};

// All elements along `axis` in order, and their positions.
Sorted sort(const NDArray& x, int axis = -1, bool descending = false);
// The positions alone, int64.
NDArray argsort(const NDArray& x, int axis = -1, bool descending = false);
// The k largest or smallest elements along `axis`, the most extreme one first.
Sorted top_k(const NDArray& x, std::int64_t k, int axis = -1, bool largest = true);

}  // namespace paceline
