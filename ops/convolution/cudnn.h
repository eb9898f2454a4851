#pragma once
// cuDNN's convolution on CUDA devices. The library is opened when it is first asked for; where it is not there, or has
// nothing for these sizes, convolution.cu does the work itself.

#include "convolution/geometry.h"

namespace paceline {

// Bytes of workspace of the call below; 0 where it would not use cuDNN.
std::size_t cudnn_workspace(ConvolutionPass pass, const ConvolutionGeometry& geometry, DType dtype, Device device);
// Issues the pass, with the bias of the channels that it makes where there is one; not the bias' gradient. False:
// nothing was issued.
bool cudnn_convolution(ConvolutionPass pass, const ConvolutionGeometry& geometry, const ConvolutionArrays& arrays,
                       DType dtype, const KernelContext& context);

}  // namespace paceline
