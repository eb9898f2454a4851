#include "loss/loss.h"

#include "loss/functors.h"
#include "reduce/reduce.h"
#include "shared/vector_map.h"

namespace paceline {

using namespace functors;

namespace {

template <class F>
void loss_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const F f = functor_of<F>(attributes);
  visit_floating(in[0].dtype, "loss", [&]<class T>(TypeTag<T>) { map_elements<T>(f, out[0], in[0], in[1]); });
}

template <class F, bool kTarget>
void backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const LossSlope<F, kTarget> slope{functor_of<F>(attributes)};
  visit_floating(in[0].dtype, "loss",
                 [&]<class T>(TypeTag<T>) { map_elements<T>(slope, out[0], in[0], in[1], in[2]); });
}

OpDef::InferRule same_floating(const char* name) {
  return [name](const std::vector<NDArray>& inputs, const void*) {
    const NDArray& first = inputs[0];
    for (const NDArray& input : inputs)
      require(input.shape() == first.shape() && input.dtype() == first.dtype() && is_floating(first.dtype()), "[", name,
              "] got ", first.describe(), " and ", input.describe(), ", expected one shape and one floating type");
    return std::vector<ArraySpec>{{first.shape(), first.dtype()}};
  };
}

template <class F>
OpDef loss(const char* name, const OpDef& (*by_prediction)(), const OpDef& (*by_target)()) {
  return OpDef(name)
      .input("prediction")
      .input("target")
      .saves_inputs({0, 1})
      .elementwise()
      .infer(same_floating(name))
      .cpu(loss_cpu<F>)
      .gradient([=](const OpCall& call, const std::vector<NDArray>& gradients) {
        std::vector<Gradient> result(2);
        const std::vector<NDArray> inputs{gradients[0], call.inputs[0], call.inputs[1]};
        if (call.wants_gradient(0)) result[0] = invoke(by_prediction(), inputs, call.attribute_data)[0];
        if (call.wants_gradient(1)) result[1] = invoke(by_target(), inputs, call.attribute_data)[0];
        return result;
      });
}

template <class F, bool kTarget>
OpDef backward(const char* name) {
  return OpDef(name)
      .input("gradient")
      .input("prediction")
      .input("target")
      .elementwise()
      .infer(same_floating(name))
      .cpu(backward_cpu<F, kTarget>);
}

NDArray reduced(const NDArray& losses, Reduction reduction) {
  if (reduction == Reduction::kNone) return losses;
  return reduction == Reduction::kMean ? mean(losses) : sum(losses);
}

AttributeText delta_text(const void* attributes) {
  return {{"delta", str(static_cast<const HuberAttributes*>(attributes)->delta)}};
}

}  // namespace

#define PACELINE_LOSS(name, Functor, ...)                                                                              \
  const OpDef& name##_operator();                                                                                      \
  const OpDef& name##_backward_prediction_operator();                                                                  \
  const OpDef& name##_backward_target_operator();                                                                      \
  OpDef name##_op() {                                                                                                  \
    return loss<Functor>(#name, name##_backward_prediction_operator, name##_backward_target_operator) __VA_ARGS__;     \
  }                                                                                                                    \
  OpDef name##_backward_prediction_op() { return backward<Functor, false>(#name "_backward_prediction") __VA_ARGS__; } \
  OpDef name##_backward_target_op() { return backward<Functor, true>(#name "_backward_target") __VA_ARGS__; }

#define PACELINE_PLAIN_LOSS(name, Functor)                                              \
  PACELINE_LOSS(name, Functor)                                                          \
  NDArray name(const NDArray& prediction, const NDArray& target, Reduction reduction) { \
    return reduced(invoke(name##_operator(), {prediction, target})[0], reduction);      \
  }

PACELINE_PLAIN_LOSS(squared_loss, SquaredLoss)
PACELINE_PLAIN_LOSS(absolute_loss, AbsoluteLoss)
PACELINE_PLAIN_LOSS(hinge_loss, HingeLoss)
PACELINE_PLAIN_LOSS(sigmoid_cross_entropy, SigmoidCrossEntropy)
PACELINE_PLAIN_LOSS(kl_divergence, KlDivergence)
PACELINE_LOSS(huber_loss, HuberLoss, .attributes<HuberAttributes>().text(delta_text))
#undef PACELINE_PLAIN_LOSS
#undef PACELINE_LOSS

NDArray huber_loss(const NDArray& prediction, const NDArray& target, double delta, Reduction reduction) {
  require(delta > 0, "[huber_loss] delta is ", delta, ", expected a positive number");
  return reduced(invoke(huber_loss_operator(), {prediction, target}, HuberAttributes{delta}), reduction);
}

}  // namespace paceline
