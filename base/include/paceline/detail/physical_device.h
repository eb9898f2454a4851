#pragma once
// Not installed.

namespace paceline::detail {

// Which of the machine's GPUs is behind cuda:`index`: with PACELINE_CUDA_DEVICES, for tests, several are one. There
// must be such a device.
int physical_cuda_device(int index);

}  // namespace paceline::detail
