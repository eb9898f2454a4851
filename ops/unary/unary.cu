#include "unary/functors.h"

#include <paceline/op.h>
#include <paceline/detail/elementwise.cuh>

namespace paceline {

using namespace functors;

namespace {

template <class F>
void unary_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                const void* attributes) {
  const F f = functor_of<F>(attributes);
  visit_dtype(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<T> || (F::kIntegers && std::is_signed_v<T>))
      detail::elementwise_cuda<T, T>(context, f, out[0], in[0]);
  });
}

template <class F>
void unary_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                         const void* attributes) {
  const Chain<F> chain{functor_of<F>(attributes)};
  visit_floating(in[0].dtype, "unary", [&](auto tag) {
    using T = typename decltype(tag)::type;
    detail::elementwise_cuda<T, T, T>(context, chain, out[0], in[0], in[1]);
  });
}

}  // namespace

#define PACELINE_UNARY(name, Functor)                                                \
  OpDef name##_on_cuda(OpDef op) { return std::move(op).cuda(unary_cuda<Functor>); } \
  OpDef name##_backward_on_cuda(OpDef op) { return std::move(op).cuda(unary_backward_cuda<Functor>); }

PACELINE_UNARY(relu, Relu)
PACELINE_UNARY(sigmoid, Sigmoid)
PACELINE_UNARY(tanh, Tanh)
PACELINE_UNARY(gelu, Gelu)
PACELINE_UNARY(softplus, Softplus)
PACELINE_UNARY(exp, Exp)
PACELINE_UNARY(log, Log)
PACELINE_UNARY(sqrt, Sqrt)
PACELINE_UNARY(rsqrt, Rsqrt)
PACELINE_UNARY(square, Square)
PACELINE_UNARY(reciprocal, Reciprocal)
PACELINE_UNARY(abs, Abs)
PACELINE_UNARY(sin, Sin)
PACELINE_UNARY(cos, Cos)
PACELINE_UNARY(gelu_tanh, GeluTanh)
PACELINE_UNARY(silu, Silu)
PACELINE_UNARY(softsign, Softsign)
PACELINE_UNARY(selu, Selu)
PACELINE_UNARY(expm1, Expm1)
PACELINE_UNARY(log1p, Log1p)
PACELINE_UNARY(erf, Erf)
PACELINE_UNARY(leaky_relu, LeakyRelu)
PACELINE_UNARY(elu, Elu)
PACELINE_UNARY(clip, Clip)
#undef PACELINE_UNARY

OpDef negative_on_cuda(OpDef op) { return std::move(op).cuda(unary_cuda<Negative>); }
OpDef sign_on_cuda(OpDef op) { return std::move(op).cuda(unary_cuda<Sign>); }
OpDef floor_on_cuda(OpDef op) { return std::move(op).cuda(unary_cuda<Floor>); }
OpDef ceil_on_cuda(OpDef op) { return std::move(op).cuda(unary_cuda<Ceil>); }
OpDef round_on_cuda(OpDef op) { return std::move(op).cuda(unary_cuda<Round>); }

}  // namespace paceline
