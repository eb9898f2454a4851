// An operator of one's own: bend, x > 0 ? x : slope * x, with a kernel and a gradient. It needs no registration.
#include <paceline/autograd.h>
#include <paceline/ops.h>

#include <cstdio>

using namespace paceline;

struct BendAttributes {
  float slope = 0.1f;
};

void bend_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const float slope = static_cast<const BendAttributes*>(attributes)->slope;
  const float* x = in[0].as<const float>();
  float* y = out[0].as<float>();
  for (std::int64_t i = 0; i < in[0].size(); ++i) y[i] = x[i] > 0 ? x[i] : slope * x[i];
}

const OpDef& bend() {
  static const OpDef op =
      OpDef("bend")
          .attributes<BendAttributes>()
          .input("x")
          .saves_inputs({0})
          .infer([](const std::vector<NDArray>& inputs, const void*) {
            require(inputs[0].dtype() == DType::kFloat32, "[bend] x is ", inputs[0].describe());
            return std::vector<ArraySpec>{{inputs[0].shape(), DType::kFloat32}};
          })
          .cpu(bend_cpu)
          .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
            const double slope = call.attributes<BendAttributes>().slope;
            const NDArray positive = cast(greater(call.inputs[0], 0), DType::kFloat32);
            return {gradients[0] * (positive * (1 - slope) + slope)};
          });
  return op;
}

int main() {
  const NDArray x = NDArray::from(std::vector<float>{-2, -1, 1, 2}, {4});
  const NDArray gradient = NDArray::zeros({4});
  Tape tape;
  tape.watch(x, gradient);
  const NDArray y = invoke(bend(), {x}, BendAttributes{.slope = 0.25f});
  tape.backward(sum(y));
  for (const NDArray& array : {y, gradient})
    for (const float value : array.to_vector<float>()) std::printf("%g ", static_cast<double>(value));
  std::printf("\n");  // -0.5 -0.25 1 2 0.25 0.25 1 1
}
