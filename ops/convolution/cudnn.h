#pragma once
// cuDNN's convolution on CUDA devices. The library is opened when it is first asked for; where it is not there, or has
// nothing for these sizes, convolution.cu does the work itself.

#include "convolution/geometry.h"

namespace paceline {

// Bytes of workspace of the call below; 0 where it would not use cuDNN.
std::size_t cudnn_workspace(ConvolutionPass pass, const ConvolutionGeometry& geometry, DType dtype, bool channels_last,
                            Device device);
// Issues the pass, with the bias of the channels that it makes where there is one; not the bias' gradient. x, y
// and weights are row-major or all have their channels last (channels.h). False: nothing was issued.
bool cudnn_convolution(ConvolutionPass pass, const ConvolutionGeometry& geometry, const ConvolutionArrays& arrays,
                       DType dtype, bool channels_last, const KernelContext& context);

}  // namespace paceline
