#pragma once
// The same elements in another shape. The result shares the memory of a contiguous argument; else it is a copy.

#include <paceline/op.h>

namespace paceline {

// The arguments of reshape().
struct ReshapeAttributes {
  Shape shape;         // with codes, as given
  bool plain = false;  // no codes: 0 is a size
};

// x in that shape, in which some numbers are codes: 0 keeps the size of x at that place, -1, once, is what is left
// over, and -2 stands for all remaining sizes of x. Throws InvalidArgument where the number of elements differs.
NDArray reshape(const NDArray& x, const Shape& shape);

NDArray flatten(const NDArray& x);                // (n, ...) as (n, rest)
NDArray expand_dims(const NDArray& x, int axis);  // with an axis of size 1 before `axis`; -1 appends it
NDArray squeeze(const NDArray& x, int axis);      // without `axis`, whose size must be 1

}  // namespace paceline
