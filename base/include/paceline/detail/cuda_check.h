#pragma once
// Turns a CUDA status into an Error. Included by .cu files and the CUDA runtime only. Not installed.

#include <paceline/error.h>

#include <cuda_runtime_api.h>

namespace paceline::detail {

// Throws OutOfMemory or Error saying what failed, in CUDA's own words.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // else the check behind this thread's next kernel finds it again
  const std::string message = str(what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(message);
  throw Error(message);
}

}  // namespace paceline::detail
