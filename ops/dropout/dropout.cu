#include "dropout/dropout.h"

#include <paceline/random.h>
#include <paceline/detail/elementwise.cuh>

namespace paceline {

namespace {

// The numbers of dropout.cc: a thread takes the four of one random_bits().
template <class T, class A>
__global__ void drop(std::int64_t size, std::uint64_t threshold, std::uint64_t seed, const std::int64_t* call, A scale,
                     const T* x, T* y) {
  constexpr std::int64_t kBlock = 4;
  const std::uint64_t stream = call ? static_cast<std::uint64_t>(*call) : 0;
  for (std::int64_t block = detail::first_index(); block * kBlock < size; block += detail::index_step()) {
    const RandomBits bits = random_bits(seed, static_cast<std::uint64_t>(block), stream);
    for (int k = 0; k < kBlock && block * kBlock + k < size; ++k) {
      const std::int64_t i = block * kBlock + k;
      y[i] = bits.word[k] < threshold ? T(0) : T(static_cast<A>(x[i]) * scale);
    }
  }
}

void dropout_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const auto [rate, seed] = *static_cast<const DropoutAttributes*>(attributes);
  const std::int64_t size = in[0].size();
  if (size == 0) return;
  const auto threshold = static_cast<std::uint64_t>(rate * 0x1p32);
  const std::int64_t* const call = in.size() > 1 ? in[1].as<const std::int64_t>() : nullptr;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "dropout", [&, rate = rate, seed = seed](auto tag) {
    using T = typename decltype(tag)::type;
    using A = accumulator_t<T>;
    drop<<<detail::grid_for(size / 4 + 1), detail::kThreads, 0, stream>>>(
        size, threshold, seed, call, static_cast<A>(1 / (1 - rate)), in[0].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting dropout");
}

}  // namespace

OpDef dropout_on_cuda(OpDef op) { return std::move(op).cuda(dropout_cuda); }

}  // namespace paceline
