#pragma once
// Turns a CUDA status into an Error. Included by .cu files and the CUDA runtime only. Not installed.

#include <paceline/error.h>

#include <cuda_runtime_api.h>

namespace paceline::detail {

// Is the device, as this process sees it, lost? Every later call then reports the same.
inline bool breaks_device(cudaError_t status) {
  switch (static_cast<int>(status)) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case 226:  // cudaErrorContained, and
    case 721:  // cudaErrorTensorMemoryLeak, which older toolkits do not name
    case cudaErrorContextIsDestroyed:
    case cudaErrorDevicesUnavailable:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown: return true;
    default: return false;
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

// For a library's call that failed: throws DeviceError where the device that `stream` belongs to is lost, which the
// library does not say.
inline void check_device(cudaStream_t stream, const char* what) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t status = cudaStreamIsCapturing(stream, &capture);
  if (status == cudaSuccess && capture == cudaStreamCaptureStatusNone) status = cudaStreamQuery(stream);
  if (breaks_device(status)) check_cuda(status, what);
  cudaGetLastError();
}

}  // namespace paceline::detail
