#pragma once
// Two-dimensional convolution (cross-correlation): x (n, in, height, width), weight (out, in / groups, kh, kw), bias
// (out) or none, result (n, out, oh, ow) with oh = (height + 2 padding - dilation (kh - 1) - 1) / stride + 1. Floating
// types; float32 through oneDNN where built with it, else im2col and OpenBLAS. Throws InvalidArgument "[conv2d] ...".

#include <paceline/op.h>

#include <array>

namespace paceline {

struct Conv2dAttributes {
  std::array<std::int64_t, 2> stride{1, 1};  // each pair: along height, along width
  std::array<std::int64_t, 2> padding{0, 0};
  std::array<std::int64_t, 2> dilation{1, 1};
  std::int64_t groups = 1;
};

NDArray conv2d(const NDArray& x, const NDArray& weight, const NDArray& bias = {},
               const Conv2dAttributes& attributes = {});

}  // namespace paceline
