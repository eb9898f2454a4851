#pragma once
// Convolutions over one, two or three spatial axes.

#include <paceline/op.h>

namespace paceline {

// The arguments of convolution(). A Shape has a number for every spatial axis, or none.
struct ConvolutionAttributes {
  Shape stride = {};        // between places of the kernel; none: 1
  Shape padding = {};       // zeros at both ends; none: 0
  Shape dilation = {};      // between elements of the kernel; none: 1
  std::int64_t groups = 1;  // parts of the channels that do not see each other
};

// The arguments of transposed_convolution().
struct TransposedConvolutionAttributes : ConvolutionAttributes {
  Shape output_padding = {};  // is added to the result's sizes, at the end; less than the stride; none: 0
};

// Convolution (cross-correlation): x (n, in, sizes...), weight (out, in / groups, kernel...) and bias (out) or none
// give (n, out, results...). Along each axis, result = (size + 2 padding - dilation (kernel - 1) - 1) / stride + 1.
// Floating types. float32 is computed by oneDNN where it is built in and has code, else by im2col and OpenBLAS. Throws
// InvalidArgument "[convolution] ...".
NDArray convolution(const NDArray& x, const NDArray& weight, const NDArray& bias = {},
                    const ConvolutionAttributes& attributes = {});

// The gradient of a convolution with respect to its input, as a layer: x (n, in, sizes...), weight (in, out / groups,
// kernel...) and bias (out) or none give (n, out, results...). Along each axis, result = (size - 1) stride - 2 padding
// + dilation (kernel - 1) + 1 + output_padding. Throws InvalidArgument "[transposed_convolution] ...".
NDArray transposed_convolution(const NDArray& x, const NDArray& weight, const NDArray& bias = {},
                               const TransposedConvolutionAttributes& attributes = {});

}  // namespace paceline
