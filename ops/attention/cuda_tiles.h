#pragma once
// The CUDA halves of attend() and attend_backward(); null in a build without CUDA. Operands as in tiles.cc.

#include <paceline/kernel.h>

namespace paceline {

struct AttentionHow {
  bool causal, masked;
  double scale;
};

KernelFunction attend_cuda();
KernelFunction attend_backward_cuda();

}  // namespace paceline
