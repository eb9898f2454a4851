#pragma once
// The threads of a kernel.

#include <cuda_runtime_api.h>

#include <functional>
#include <random>

namespace cuda_emulation {

// Blocks and threads in an order that `random` chooses. A barrier that cannot be passed ends the program.
void run_kernel(const char* name, dim3 grid, dim3 block, const std::function<void()>& thread, std::mt19937_64& random);

}  // namespace cuda_emulation
