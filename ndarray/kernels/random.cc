#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"
#include "kernels/functors.h"

#include <paceline/detail/elementwise.h>

#include <cmath>

namespace paceline {
namespace detail {
namespace {

template <template <class> class Block>
void random_cpu(const KernelContext& context, std::span<const Tensor>, std::span<const Tensor> outputs,
                const void* attributes) {
  const auto& distribution = *static_cast<const Distribution*>(attributes);
  visit_floating(outputs[0].dtype, "random", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr std::int64_t kWidth = kRandomBlock<T>;
    const Block<T> block{distribution.first, distribution.second};
    T* const out = outputs[0].as<T>();
    const std::int64_t size = outputs[0].size();
    const std::int64_t blocks = (size + kWidth - 1) / kWidth;
    parallel_ranges(blocks, 2048, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        T numbers[kWidth];
        block(context.seed, static_cast<std::uint64_t>(b), numbers);
        const std::int64_t count = std::min(kWidth, size - b * kWidth);
        for (std::int64_t i = 0; i < count; ++i) out[b * kWidth + i] = numbers[i];
      }
    });
  });
}

void draw(const Kernel& kernel, const NDArray& out, const Distribution& distribution, std::uint64_t seed) {
  require(is_floating(out.dtype()), "[", kernel.name, "] needs a floating type, got ", out.describe());
  // The numbers belong to the elements in row-major order, whatever the order in memory.
  const NDArray dense = out.is_contiguous() ? out : NDArray(out.shape(), out.dtype(), out.device(), out.engine());
  const NDArray outputs[] = {dense};
  launch(kernel, {}, outputs, std::make_shared<const Distribution>(distribution), {.seed = seed});
  if (!out.is_contiguous()) out.copy_from(dense);
}

}  // namespace
}  // namespace detail

namespace kernels {

void fill_uniform(const NDArray& out, double low, double high, std::uint64_t seed) {
  require(std::isfinite(high - low) && low < high, "[fill_uniform] the range [", low, ", ", high,
          ") is empty or its width not finite");
  detail::draw({"fill_uniform", detail::random_cpu<detail::UniformBlock>, detail::fill_uniform_cuda()}, out,
               {low, high - low}, seed);
}

void fill_normal(const NDArray& out, double mean, double deviation, std::uint64_t seed) {
  require(std::isfinite(mean) && std::isfinite(deviation) && deviation >= 0, "[fill_normal] a mean of ", mean,
          " and a deviation of ", deviation, " do not make a distribution");
  detail::draw({"fill_normal", detail::random_cpu<detail::NormalBlock>, detail::fill_normal_cuda()}, out,
               {mean, deviation}, seed);
}

}  // namespace kernels
}  // namespace paceline
