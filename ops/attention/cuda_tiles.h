#pragma once
// The CUDA halves of attend() and attend_backward(); null in a build without CUDA. Operands as in tiles.cc.

#include <paceline/kernel.h>

namespace paceline {

struct AttentionHow {
  bool causal, masked;
  double scale;
};

// float32 and float64, and the halves that runs_on_tensor_cores().
KernelFunction attend_cuda();
KernelFunction attend_backward_cuda();

// Do the kernels take halves of so many columns as they are?
bool runs_on_tensor_cores(DType dtype, Device device, std::int64_t columns);

}  // namespace paceline
