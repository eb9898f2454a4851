#pragma once
// The same elements in another shape. The result shares the memory of a contiguous argument, else it is a copy.

#include <paceline/op.h>

namespace paceline {

struct ReshapeAttributes {
  Shape shape;         // with codes, as given
  bool plain = false;  // no codes: 0 is a size
};

// Codes in `shape`: 0 keeps the argument's size at that place, -1 (once) is whatever is left over, -2 stands for all
// remaining sizes of the argument. Throws InvalidArgument when the number of elements differs.
NDArray reshape(const NDArray& x, const Shape& shape);

NDArray flatten(const NDArray& x);                // (n, ...) -> (n, rest)
NDArray expand_dims(const NDArray& x, int axis);  // inserts an axis of size 1 before `axis`; -1 appends it
NDArray squeeze(const NDArray& x, int axis);      // drops an axis of size 1

}  // namespace paceline
