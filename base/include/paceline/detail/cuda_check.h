#pragma once
// Turns a CUDA status into an Error. Included by .cu files and the CUDA runtime only. Not installed.

#include <paceline/error.h>

#include <cuda_runtime_api.h>

namespace paceline::detail {

// Is the device, as this process sees it, lost? Every later call then reports the same.
inline bool breaks_device(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorAssert:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorDevicesUnavailable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// Makes cuda:`index` the device of the calling thread's CUDA calls. With PACELINE_CUDA_DEVICES=4, for tests, a machine
// with fewer has four, which share those that there are.
void select_cuda_device(int index);

// Throws OutOfMemory, DeviceError or Error saying what failed, in CUDA's own words.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // else the check behind this thread's next kernel finds it again
  const std::string message = str(what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(message);
  if (breaks_device(status)) throw DeviceError(message);
  throw Error(message);
}

}  // namespace paceline::detail
