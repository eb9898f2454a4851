#include "loss/functors.h"

#include <paceline/op.h>
#include <paceline/detail/elementwise.cuh>

namespace paceline {

using namespace functors;

namespace {

template <class F>
void loss_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
               const void* attributes) {
  const F f = functor_of<F>(attributes);
  visit_floating(in[0].dtype, "loss", [&](auto tag) {
    using T = typename decltype(tag)::type;
    detail::elementwise_cuda<T, T, T>(context, f, out[0], in[0], in[1]);
  });
}

template <class F, bool kTarget>
void backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const LossSlope<F, kTarget> slope{functor_of<F>(attributes)};
  visit_floating(in[0].dtype, "loss", [&](auto tag) {
    using T = typename decltype(tag)::type;
    detail::elementwise_cuda<T, T, T, T>(context, slope, out[0], in[0], in[1], in[2]);
  });
}

}  // namespace

#define PACELINE_LOSS(name, Functor)                                                                               \
  OpDef name##_on_cuda(OpDef op) { return std::move(op).cuda(loss_cuda<Functor>); }                                \
  OpDef name##_backward_prediction_on_cuda(OpDef op) { return std::move(op).cuda(backward_cuda<Functor, false>); } \
  OpDef name##_backward_target_on_cuda(OpDef op) { return std::move(op).cuda(backward_cuda<Functor, true>); }

PACELINE_LOSS(squared_loss, SquaredLoss)
PACELINE_LOSS(absolute_loss, AbsoluteLoss)
PACELINE_LOSS(huber_loss, HuberLoss)
PACELINE_LOSS(hinge_loss, HingeLoss)
PACELINE_LOSS(sigmoid_cross_entropy, SigmoidCrossEntropy)
PACELINE_LOSS(kl_divergence, KlDivergence)
#undef PACELINE_LOSS

}  // namespace paceline
