#include "prelu/prelu.h"

#include "binary/binary.h"
#include "prelu/functors.h"
#include "reduce/reduce.h"
#include "reshape/reshape.h"
#include "shared/vector_map.h"
#include "where/where.h"

namespace paceline {

const OpDef& prelu_operator();

namespace {

void prelu_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  visit_floating(in[0].dtype, "prelu",
                 [&]<class T>(TypeTag<T>) { map_elements<T>(functors::Prelu(), out[0], in[0], in[1]); });
}

}  // namespace

// The operator takes a slope that broadcasts to x.
OpDef prelu_op() {
  return OpDef("prelu")
      .input("x")
      .input("slope")
      .saves_inputs({0, 1})
      .elementwise()
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        const NDArray& x = inputs[0];
        const NDArray& slope = inputs[1];
        require(is_floating(x.dtype()) && x.dtype() == slope.dtype(), "[prelu] x is ", x.describe(), " and slope is ",
                slope.describe(), ", expected one floating type");
        require(broadcast(x.shape(), slope.shape()) == x.shape(), "[prelu] slope has shape ", slope.shape(),
                ", which does not repeat to ", x.shape());
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .cpu(prelu_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        const NDArray& x = call.inputs[0];
        const NDArray positive = greater(x, 0);
        std::vector<Gradient> result(2);
        if (call.wants_gradient(0)) result[0] = where(positive, gradients[0], gradients[0] * call.inputs[1]);
        if (call.wants_gradient(1)) result[1] = sum_to(where(positive, 0, gradients[0] * x), call.input_specs[1].shape);
        return result;
      });
}

NDArray prelu(const NDArray& x, const NDArray& slope) {
  if (slope.size() == 1) return invoke(prelu_operator(), {x, reshape(slope, {})})[0];
  require(x.ndim() >= 2 && slope.shape() == Shape{x.size(1)}, "[prelu] slope has shape ", slope.shape(),
          ", expected one number or one for each of the channels of ", x.describe());
  Shape along{slope.size()};
  for (int i = 2; i < x.ndim(); ++i) along.push_back(1);
  return invoke(prelu_operator(), {x, reshape(slope, along)})[0];
}

}  // namespace paceline
