#include "flip/flip.h"

#include "flip/mirror.h"
#include "shared/text.h"

#include <paceline/detail/elementwise.h>

namespace paceline {

const OpDef& flip_operator();

namespace {

void flip_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const Tensor x = mirrored(in[0], attributes);
  visit_dtype(x.dtype, [&]<class T>(TypeTag<T>) { detail::elementwise<T, T>(Same(), out[0], x); });
}

}  // namespace

OpDef flip_op() {
  return OpDef("flip")
      .attributes<FlipAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        reduced_axes("flip", x.shape(), ReduceAttributes{static_cast<const FlipAttributes*>(attributes)->axes});
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .cpu(flip_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {flip(gradients[0], call.attributes<FlipAttributes>().axes)};
      })
      .text([](const void* attributes) {
        return AttributeText{{"axes", text_of(static_cast<const FlipAttributes*>(attributes)->axes)}};
      });
}

NDArray flip(const NDArray& x, std::vector<int> axes) {
  return invoke(flip_operator(), {x}, FlipAttributes{std::move(axes)});
}

}  // namespace paceline
