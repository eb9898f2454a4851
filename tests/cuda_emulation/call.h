#pragma once
// What every function of the CUDA interface does first and last.

#include "scheduler.h"

#include <cuda_runtime_api.h>

namespace cuda_emulation {

// Leaves an error behind for cudaGetLastError(), as CUDA does.
cudaError_t result(cudaError_t status);
int current_device();
// For calls that CUDA refuses while the thread captures a stream: the error, and the capture fails.
cudaError_t refused_while_capturing();

// Holds the lock. A call from a host function ends the program.
class Call {
 public:
  Call();
  Scheduler& scheduler;
  std::unique_lock<std::mutex> lock;

  // The stream behind a handle; null is the device's default stream.
  Stream& stream(cudaStream_t handle) {
    return handle ? *reinterpret_cast<Stream*>(handle) : scheduler.default_stream(current_device());
  }
  // Until `clock` is reached; returns what is wrong with the device.
  cudaError_t wait(const Clock& clock, int device) {
    scheduler.wait(lock, clock);
    return result(scheduler.failure(device));
  }
};

}  // namespace cuda_emulation
