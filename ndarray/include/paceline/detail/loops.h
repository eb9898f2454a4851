#pragma once
// The nest of loops that visits every element of some operands of one shape, whatever their strides.

#include <paceline/shape.h>

#include <cstdint>
#include <span>

namespace paceline::detail {

inline constexpr int kMaxOperands = 6;

// Plain data, so that CUDA kernels take it by value. Outermost first; never without a loop.
struct Loops {
  int ndim;
  std::int64_t total;  // elements
  std::int64_t sizes[Shape::kMaxDims];
  std::int64_t strides[kMaxOperands][Shape::kMaxDims];
};

// `strides[n]` belongs to operand n. Loops of length 1 are dropped, neighbours that are one run of memory for every
// operand become one, and the rest is ordered so that operand 0 is visited in the order of its memory.
Loops make_loops(const Shape& shape, std::span<const Strides> strides);

}  // namespace paceline::detail
