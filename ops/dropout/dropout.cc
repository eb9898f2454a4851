#include "dropout/dropout.h"

#include <paceline/detail/elementwise.h>
#include <paceline/random.h>

namespace paceline {

const OpDef& dropout_operator();

namespace {

const DropoutAttributes& of(const void* attributes) { return *static_cast<const DropoutAttributes*>(attributes); }

void dropout_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  constexpr std::int64_t kBlock = 4;  // numbers of one random_bits()
  const auto [rate, seed] = of(attributes);
  const auto threshold = static_cast<std::uint64_t>(rate * 0x1p32);  // drops bits below it
  const std::int64_t size = in[0].size();
  const std::uint64_t call = in.size() > 1 ? static_cast<std::uint64_t>(*in[1].as<std::int64_t>()) : 0;
  visit_floating(in[0].dtype, "dropout", [&, rate = rate, seed = seed]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const A scale = static_cast<A>(1 / (1 - rate));
    const T* const x = in[0].as<const T>();
    T* const y = out[0].as<T>();
    detail::parallel_ranges((size + kBlock - 1) / kBlock, 2048, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        const RandomBits bits = random_bits(seed, static_cast<std::uint64_t>(block), call);
        const std::int64_t last = std::min(size, (block + 1) * kBlock);
        for (std::int64_t i = block * kBlock; i < last; ++i)
          y[i] = bits.word[i % kBlock] < threshold ? T(0) : T(static_cast<A>(x[i]) * scale);
      }
    });
  });
}

}  // namespace

OpDef dropout_op() {
  return OpDef("dropout")
      .attributes<DropoutAttributes>()
      .input("x")
      .optional_input("call")
      .saves_inputs({1})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const double rate = of(attributes).rate;
        require(rate >= 0 && rate < 1, "[dropout] rate is ", rate, ", expected 0 <= rate < 1");
        require(is_floating(inputs[0].dtype()), "[dropout] x is ", name_of(inputs[0].dtype()),
                ", expected a floating type");
        const NDArray& call = inputs[1];
        require(call.is_none() || (call.dtype() == DType::kInt64 && call.size() == 1), "[dropout] call is ",
                call.describe(), ", expected one int64");
        return std::vector<ArraySpec>{{inputs[0].shape(), inputs[0].dtype()}};
      })
      .cpu(dropout_cpu)
      // Linear in x: the gradient passes through the same mask, which the seed gives again.
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(dropout_operator(), {gradients[0], call.inputs[1]}, call.attribute_data)[0], NDArray()};
      })
      .text([](const void* attributes) {
        return AttributeText{{"rate", str(of(attributes).rate)}, {"seed", str(of(attributes).seed)}};
      });
}

NDArray dropout(const NDArray& x, double rate, std::uint64_t seed, const NDArray& call) {
  return invoke(dropout_operator(), {x, call}, DropoutAttributes{rate, seed});
}

}  // namespace paceline
