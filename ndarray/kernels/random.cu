#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"
#include "kernels/functors.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline::detail {
namespace {

template <class T, class Block>
__global__ void draw(Block block, std::uint64_t seed, std::int64_t size, T* out) {
  constexpr int kWidth = kRandomBlock<T>;
  for (std::int64_t b = first_index(); b * kWidth < size; b += index_step()) {
    T numbers[kWidth];
    block(seed, static_cast<std::uint64_t>(b), numbers);
    for (int i = 0; i < kWidth && b * kWidth + i < size; ++i) out[b * kWidth + i] = numbers[i];
  }
}

template <template <class> class Block>
void random(const KernelContext& context, std::span<const Tensor>, std::span<const Tensor> outputs,
            const void* attributes) {
  const auto& distribution = *static_cast<const Distribution*>(attributes);
  const Tensor& out = outputs[0];
  if (out.size() == 0) return;
  const cudaStream_t stream = stream_of(context);
  visit_floating(out.dtype, "random", [&](auto tag) {
    using T = typename decltype(tag)::type;
    draw<T><<<grid_for(out.size() / kRandomBlock<T> + 1), kThreads, 0, stream>>>(
        Block<T>{distribution.first, distribution.second}, context.seed, out.size(), out.as<T>());
  });
  check_cuda(cudaGetLastError(), "starting a random fill");
}

}  // namespace

KernelFunction fill_uniform_cuda() { return random<UniformBlock>; }
KernelFunction fill_normal_cuda() { return random<NormalBlock>; }

}  // namespace paceline::detail
