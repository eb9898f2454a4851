#pragma once
// Copies that a Tape follows.

#include <paceline/op.h>

namespace paceline {

// The arguments of cast().
struct CastAttributes {
  DType dtype = DType::kFloat32;  // of the result
};
// The arguments of broadcast_to().
struct BroadcastToAttributes {
  Shape shape;  // of the result
};

NDArray copy(const NDArray& x);  // a copy in new row-major memory
// x (n, channels, sizes...) with the channels as the last axis in memory: x itself where they are. Shape and numbers
// stay. Results of kernels that can do it have that order, too (OpDef::channels_last()).
NDArray channels_last(const NDArray& x);
// x in another type, with NDArray::cast()'s rules. There is no gradient to or from integer types. The result is
// row-major, but channels that are last in memory stay so on CUDA devices.
NDArray cast(const NDArray& x, DType dtype);
// x repeated along axes of size 1 and new leading axes, in new memory. Throws InvalidArgument where that does not give
// the shape.
NDArray broadcast_to(const NDArray& x, const Shape& shape);
// x repeated as a whole, `times[i]` times along axis i. Throws InvalidArgument unless there is a number, not negative,
// for each axis.
NDArray tile(const NDArray& x, const std::vector<std::int64_t>& times);
// Each slice of x along `axis` repeated `times` times, one after the other. Throws InvalidArgument on a wrong axis or
// number.
NDArray repeat(const NDArray& x, std::int64_t times, int axis);

}  // namespace paceline
