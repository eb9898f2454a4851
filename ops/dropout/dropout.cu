#include "dropout/dropout.h"

#include <paceline/random.h>
#include <paceline/detail/elementwise.cuh>

namespace paceline {

namespace {

constexpr int kBlock = 4;  // numbers of one random_bits()

template <class T>
constexpr int kNumbers = std::max(kBlock, detail::kVectorWidth<T>);  // of a thread

// The numbers of dropout.cc: a thread takes those of whole blocks.
template <class T, class A>
__global__ void drop(std::int64_t size, bool wide, std::uint64_t threshold, std::uint64_t seed,
                     const std::int64_t* call, A scale, const T* x, T* y) {
  constexpr int kWidth = kNumbers<T>;
  const std::uint64_t stream = call ? static_cast<std::uint64_t>(*call) : 0;
  const auto kept = [=](std::uint64_t bits, const T& value) {
    return bits < threshold ? T(0) : detail::stored<T>(detail::load(value) * scale);
  };
  for (std::int64_t i = detail::first_index() * kWidth; i < size; i += detail::index_step() * kWidth) {
    const bool whole = wide && size - i >= kWidth;
    detail::Vector<T, kWidth> values;
    if (whole) values = detail::read_vector<kWidth>(x + i);
#pragma unroll
    for (int block = 0; block < kWidth; block += kBlock) {
      const RandomBits bits = random_bits(seed, static_cast<std::uint64_t>((i + block) / kBlock), stream);
#pragma unroll
      for (int k = block; k < block + kBlock; ++k) {
        if (whole)
          values.at[k] = kept(bits.word[k - block], values.at[k]);
        else if (i + k < size)
          y[i + k] = kept(bits.word[k - block], x[i + k]);
      }
    }
    if (whole) detail::write_vector(y + i, values);
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
    const T* const x = in[0].as<const T>();
    T* const y = out[0].as<T>();
    constexpr int kWidth = kNumbers<T>;
    const bool wide = detail::is_aligned<kWidth>(x) && detail::is_aligned<kWidth>(y);
    drop<<<detail::grid_for(size / kWidth + 1), detail::kThreads, 0, stream>>>(size, wide, threshold, seed, call,
                                                                               static_cast<A>(1 / (1 - rate)), x, y);
  });
  detail::check_cuda(cudaGetLastError(), "starting dropout");
}

}  // namespace

OpDef dropout_on_cuda(OpDef op) { return std::move(op).cuda(dropout_cuda); }

}  // namespace paceline
