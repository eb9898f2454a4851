#pragma once
#include <paceline/kernel.h>

namespace paceline::detail {

// Does this view have every byte of its memory, so that writing it leaves nothing of the old contents?
bool covers_storage(const NDArray& array);

// launch() for kernels whose inputs may be on another CPU device than the output.
void launch_anywhere(const Kernel& kernel, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
                     const LaunchOptions& options);

}  // namespace paceline::detail
