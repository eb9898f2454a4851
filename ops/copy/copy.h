#pragma once
// Copies that autograd follows.

#include <paceline/op.h>

namespace paceline {

struct CastAttributes {
  DType dtype = DType::kFloat32;
};
struct BroadcastToAttributes {
  Shape shape;
};

NDArray copy(const NDArray& x);               // new row-major memory
NDArray cast(const NDArray& x, DType dtype);  // no gradient to or from integer types
// Repeats x along axes of size 1 and new leading axes, into new memory. Throws InvalidArgument if it does not fit.
NDArray broadcast_to(const NDArray& x, const Shape& shape);

}  // namespace paceline
