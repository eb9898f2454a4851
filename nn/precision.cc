#include "precision.h"

#include <paceline/ops.h>

namespace paceline::nn {
namespace {

// The second input, which is the first one cast: for gradients, a cast.
const OpDef& cast_made_operator() {
  static const OpDef& op =
      *new OpDef(OpDef("cast_made")
                     .input("x")
                     .input("cast")
                     .forward([](const std::vector<NDArray>& inputs, const void*) { return std::vector{inputs[1]}; })
                     .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
                       return {gradients[0].cast(call.input_specs[0].dtype), Gradient()};
                     }));
  return op;
}

bool narrows(const NDArray& x, const Context& context) {
  return is_half(context.compute) && x.dtype() == DType::kFloat32;
}

}  // namespace

NDArray in_float(const NDArray& x) { return is_half(x.dtype()) ? cast(x, DType::kFloat32) : x; }

NDArray CastWeights::cast(const Parameter& weight, DType dtype) {
  NDArray& made = casts_[&weight];
  if (made.is_none()) made = weight.value.cast(dtype);
  return invoke(cast_made_operator(), {weight.value, made})[0];
}

NDArray Layer::weight(const std::string& name, const Shape& shape, const Initializer& initializer,
                      const Context& context, DType dtype) {
  const Parameter& made = parameter(name, shape, initializer, context, dtype);
  return narrows(made.value, context) && context.casts ? context.casts->cast(made, context.compute)
                                                       : in_compute_type(made.value, context);
}

NDArray Layer::in_compute_type(const NDArray& x, const Context& context) {
  return narrows(x, context) ? cast(x, context.compute) : x;
}

}  // namespace paceline::nn
