#pragma once
// Convolution (cross-correlation) over one, two or three spatial axes: x (n, in, sizes...), weight (out, in / groups,
// kernel...), bias (out) or none, result (n, out, results...) with, along each axis, result = (size + 2 padding -
// dilation (kernel - 1) - 1) / stride + 1. Floating types; float32 through oneDNN where it is built in and has code,
// else im2col and OpenBLAS. Throw InvalidArgument "[convolution] ..." and "[transposed_convolution] ...".

#include <paceline/op.h>

namespace paceline {

struct ConvolutionAttributes {
  Shape stride = {};  // each: one number for every spatial axis, or none for 1, 0 and 1
  Shape padding = {};
  Shape dilation = {};
  std::int64_t groups = 1;
};

struct TransposedConvolutionAttributes : ConvolutionAttributes {
  Shape output_padding = {};  // added to the result's sizes, at the end; less than the stride; none for 0
};

NDArray convolution(const NDArray& x, const NDArray& weight, const NDArray& bias = {},
                    const ConvolutionAttributes& attributes = {});

// The gradient of a convolution with respect to its input, as a layer: x (n, in, sizes...), weight (in, out / groups,
// kernel...), bias (out) or none, result (n, out, results...) with, along each axis, result = (size - 1) stride -
// 2 padding + dilation (kernel - 1) + 1 + output_padding.
NDArray transposed_convolution(const NDArray& x, const NDArray& weight, const NDArray& bias = {},
                               const TransposedConvolutionAttributes& attributes = {});

}  // namespace paceline
