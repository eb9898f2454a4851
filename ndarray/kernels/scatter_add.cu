#include "kernels/cuda_kernels.h"
#include "kernels/functors.h"

#include <paceline/detail/device_positions.cuh>

namespace paceline::detail {
namespace {

// A thread per column goes through the update from front to back, so rows that repeat are added in order. A row number
// outside the table is left out.
template <class T>
__global__ void add_columns(std::int64_t count, const DevicePositions rows, const T* values, std::int64_t width,
                            T* table) {
  for (std::int64_t j = first_index(); j < width; j += index_step()) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = rows[i];
      if (row < 0) continue;
      T& to = table[row * width + j];
      to = convert<T>(wrapping_sum(load(to), load(values[i * width + j])));
    }
  }
}

void scatter_add(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                 const void*) {
  const Tensor& table = outputs[0];
  if (table.size() == 0) return;
  const std::int64_t height = table.shape[0];
  const std::int64_t width = table.size() / height;
  const DevicePositions rows(context, inputs[0], height,
                             "[scatter_add] row {} (number {} of the update) is outside a table of {}");
  const cudaStream_t stream = stream_of(context);
  visit_dtype(table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    add_columns<T><<<grid_for(width), kThreads, 0, stream>>>(inputs[0].size(), rows, inputs[1].as<const T>(), width,
                                                             table.as<T>());
  });
  check_cuda(cudaGetLastError(), "starting scatter_add");
}

}  // namespace

KernelFunction scatter_add_cuda() { return scatter_add; }

}  // namespace paceline::detail
