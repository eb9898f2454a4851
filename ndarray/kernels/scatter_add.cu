#include "kernels/cuda_kernels.h"
#include "kernels/functors.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline::detail {
namespace {

// A thread per column goes through the update from front to back, so rows that repeat are added in order. A row number
// outside the table cannot fail the task here; it is left out.
template <class T>
__global__ void add_columns(std::int64_t count, const std::int64_t* rows, const T* values, std::int64_t height,
                            std::int64_t width, T* table) {
  for (std::int64_t j = first_index(); j < width; j += index_step()) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (rows[i] < 0 || rows[i] >= height) continue;
      T& to = table[rows[i] * width + j];
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
  const cudaStream_t stream = stream_of(context);
  visit_dtype(table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    add_columns<T><<<grid_for(width), kThreads, 0, stream>>>(inputs[0].size(), inputs[0].as<const std::int64_t>(),
                                                             inputs[1].as<const T>(), height, width, table.as<T>());
  });
  check_cuda(cudaGetLastError(), "starting scatter_add");
}

}  // namespace

KernelFunction scatter_add_cuda() { return scatter_add; }

}  // namespace paceline::detail
