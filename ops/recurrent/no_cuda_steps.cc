#include "recurrent/cuda_steps.h"

namespace paceline {

CudaSteps cuda_steps(cells::Rnn<false>) { return {}; }
CudaSteps cuda_steps(cells::Rnn<true>) { return {}; }
CudaSteps cuda_steps(cells::Lstm) { return {}; }
CudaSteps cuda_steps(cells::Gru) { return {}; }

}  // namespace paceline
