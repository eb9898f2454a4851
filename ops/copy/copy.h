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

NDArray copy(const NDArray& x);  // new row-major memory
// Of (n, channels, sizes...), the channels as the last axis in memory: itself where they are. The shape stays, and so
// do all numbers; what is made of it lies so, too, where a kernel can (OpDef::channels_last).
NDArray channels_last(const NDArray& x);
// No gradient to or from integer types. Row-major, but for channels that are last on a CUDA device, which stay so.
NDArray cast(const NDArray& x, DType dtype);
// Repeats x along axes of size 1 and new leading axes, into new memory. Throws InvalidArgument if it does not fit.
NDArray broadcast_to(const NDArray& x, const Shape& shape);
// x `times[i]` times along axis i. Throws InvalidArgument unless there is a number, none negative, for each axis.
NDArray tile(const NDArray& x, const std::vector<std::int64_t>& times);
// Each slice of x along `axis` `times` times, one after the other.
NDArray repeat(const NDArray& x, std::int64_t times, int axis);

}  // namespace paceline
