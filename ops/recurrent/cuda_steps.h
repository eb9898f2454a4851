#pragma once
// The CUDA halves of a step of each cell; null in a build without CUDA. Operands as in recurrent.cc.

#include "recurrent/cells.h"

#include <paceline/kernel.h>

namespace paceline {

struct CudaSteps {
  KernelFunction forward = nullptr, backward = nullptr;
};

CudaSteps cuda_steps(cells::Rnn<false>);
CudaSteps cuda_steps(cells::Rnn<true>);
CudaSteps cuda_steps(cells::Lstm);
CudaSteps cuda_steps(cells::Gru);

}  // namespace paceline
