#include "unary/unary.h"

#include "binary/binary.h"
#include "unary/functors.h"

#include "shared/vector_map.h"

namespace paceline {

using namespace functors;
namespace {

template <bool kIntegers, class Visitor>
void visit_argument(DType dtype, Visitor&& visitor) {
  visit_dtype(dtype, [&]<class T>(TypeTag<T> tag) {
    constexpr bool kFloating = !std::is_integral_v<T>;
    if constexpr (kFloating || (kIntegers && std::is_signed_v<T>)) visitor(tag);
  });
}

template <class F>
void unary_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const F f = functor_of<F>(attributes);
  visit_argument<F::kIntegers>(in[0].dtype, [&]<class T>(TypeTag<T>) { map_elements<T>(f, out[0], in[0]); });
}

template <class F>
void unary_backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                        const void* attributes) {
  const Chain<F> chain{functor_of<F>(attributes)};
  visit_argument<false>(in[0].dtype, [&]<class T>(TypeTag<T>) { map_elements<T>(chain, out[0], in[0], in[1]); });
}

template <class F>
OpDef unary(const char* name) {
  return OpDef(name)
      .input("x")
      .elementwise()
      .infer([name](const std::vector<NDArray>& inputs, const void*) {
        const DType dtype = inputs[0].dtype();
        const bool integer = dtype == DType::kInt8 || dtype == DType::kInt32 || dtype == DType::kInt64;
        require(is_floating(dtype) || (F::kIntegers && integer), "[", name, "] x is ", name_of(dtype), ", expected a ",
                F::kIntegers ? "floating or signed integer" : "floating", " type");
        return std::vector<ArraySpec>{{inputs[0].shape(), dtype}};
      })
      .cpu(unary_cpu<F>);
}

template <class F>
OpDef differentiable(const char* name, const OpDef& (*backward)()) {
  constexpr bool kResult = F::kSaved == Saved::kResult;
  return unary<F>(name)
      .saves_inputs(kResult ? std::vector<int>{} : std::vector<int>{0})
      .saves_outputs(kResult ? std::vector<int>{0} : std::vector<int>{})
      .gradient([backward](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const NDArray& saved = F::kSaved == Saved::kResult ? call.outputs[0] : call.inputs[0];
        return {invoke(backward(), {gradients[0], saved}, call.attribute_data)[0]};
      });
}

template <class F>
OpDef backward(const char* name) {
  return OpDef(name)
      .input("gradient")
      .input(F::kSaved == Saved::kResult ? "y" : "x")
      .elementwise()
      .infer([name](const std::vector<NDArray>& inputs, const void*) {
        require(inputs[0].shape() == inputs[1].shape() && inputs[0].dtype() == inputs[1].dtype(), "[", name,
                "] gradient is ", inputs[0].describe(), ", expected ", inputs[1].describe());
        require(is_floating(inputs[0].dtype()), "[", name, "] gradient is ", name_of(inputs[0].dtype()),
                ", expected a floating type");
        return std::vector<ArraySpec>{{inputs[0].shape(), inputs[0].dtype()}};
      })
      .cpu(unary_backward_cpu<F>);
}

// Functions whose value is no integer.
NDArray lifted(const NDArray& x) { return x.is_none() || is_floating(x.dtype()) ? x : x.cast(DType::kFloat32); }

}  // namespace

#define PACELINE_UNARY(name, Functor, argument)                                          \
  const OpDef& name##_operator();                                                        \
  const OpDef& name##_backward_operator();                                               \
  OpDef name##_op() { return differentiable<Functor>(#name, name##_backward_operator); } \
  OpDef name##_backward_op() { return backward<Functor>(#name "_backward"); }            \
  NDArray name(const NDArray& x) { return invoke(name##_operator(), {argument})[0]; }    \
  NDArray name##_(const NDArray& x) { return invoke_in_place(name##_operator(), {x}); }

PACELINE_UNARY(relu, Relu, x)
PACELINE_UNARY(sigmoid, Sigmoid, lifted(x))
PACELINE_UNARY(tanh, Tanh, lifted(x))
PACELINE_UNARY(gelu, Gelu, x)
PACELINE_UNARY(softplus, Softplus, x)
PACELINE_UNARY(exp, Exp, lifted(x))
PACELINE_UNARY(log, Log, lifted(x))
PACELINE_UNARY(sqrt, Sqrt, lifted(x))
PACELINE_UNARY(rsqrt, Rsqrt, lifted(x))
PACELINE_UNARY(square, Square, x)
PACELINE_UNARY(reciprocal, Reciprocal, lifted(x))
PACELINE_UNARY(abs, Abs, x)
PACELINE_UNARY(sin, Sin, lifted(x))
PACELINE_UNARY(cos, Cos, lifted(x))
PACELINE_UNARY(gelu_tanh, GeluTanh, x)
PACELINE_UNARY(silu, Silu, x)
PACELINE_UNARY(softsign, Softsign, lifted(x))
PACELINE_UNARY(selu, Selu, x)
PACELINE_UNARY(expm1, Expm1, lifted(x))
PACELINE_UNARY(log1p, Log1p, lifted(x))
PACELINE_UNARY(erf, Erf, lifted(x))
#undef PACELINE_UNARY

namespace {
// A step is flat wherever it has a slope.
std::vector<Gradient> no_slope(const OpCall&, const std::vector<NDArray>& gradients) {
  const NDArray& like = gradients[0];
  return {NDArray::zeros(like.shape(), like.dtype(), like.device(), like.engine())};
}
}  // namespace

#define PACELINE_STEP(name, Functor)                                           \
  const OpDef& name##_operator();                                              \
  OpDef name##_op() { return unary<Functor>(#name).gradient(no_slope); }       \
  NDArray name(const NDArray& x) { return invoke(name##_operator(), {x})[0]; } \
  NDArray name##_(const NDArray& x) { return invoke_in_place(name##_operator(), {x}); }

PACELINE_STEP(sign, Sign)
PACELINE_STEP(floor, Floor)
PACELINE_STEP(ceil, Ceil)
PACELINE_STEP(round, Round)
#undef PACELINE_STEP

#define PACELINE_PARAMETRIC(name, Functor, describe)                                                                  \
  const OpDef& name##_operator();                                                                                     \
  const OpDef& name##_backward_operator();                                                                            \
  OpDef name##_op() {                                                                                                 \
    return differentiable<Functor>(#name, name##_backward_operator).attributes<Functor::Attributes>().text(describe); \
  }                                                                                                                   \
  OpDef name##_backward_op() {                                                                                        \
    return backward<Functor>(#name "_backward").attributes<Functor::Attributes>().text(describe);                     \
  }

namespace {
AttributeText slope_text(const void* attributes) {
  return {{"slope", str(static_cast<const LeakyReluAttributes*>(attributes)->slope)}};
}
AttributeText alpha_text(const void* attributes) {
  return {{"alpha", str(static_cast<const EluAttributes*>(attributes)->alpha)}};
}
AttributeText range_text(const void* attributes) {
  const auto& [low, high] = *static_cast<const ClipAttributes*>(attributes);
  return {{"low", str(low)}, {"high", str(high)}};
}
}  // namespace

PACELINE_PARAMETRIC(leaky_relu, LeakyRelu, slope_text)
PACELINE_PARAMETRIC(elu, Elu, alpha_text)
PACELINE_PARAMETRIC(clip, Clip, range_text)
#undef PACELINE_PARAMETRIC

NDArray leaky_relu(const NDArray& x, double slope) {
  return invoke(leaky_relu_operator(), {x}, LeakyReluAttributes{slope});
}
NDArray leaky_relu_(const NDArray& x, double slope) {
  return invoke_in_place(leaky_relu_operator(), {x}, LeakyReluAttributes{slope});
}
NDArray elu(const NDArray& x, double alpha) { return invoke(elu_operator(), {x}, EluAttributes{alpha}); }
NDArray elu_(const NDArray& x, double alpha) { return invoke_in_place(elu_operator(), {x}, EluAttributes{alpha}); }

namespace {
ClipAttributes range(const NDArray& x, double low, double high) {
  require(low <= high, "[clip] low is ", low, " and high is ", high, " for x, ", x.describe(),
          ", expected low <= high");
  return {low, high};
}
}  // namespace

NDArray clip(const NDArray& x, Number low, Number high) {
  const ClipAttributes to = range(x, low.value(), high.value());
  const DType type = result_type(x.dtype(), std::max(low.category(), high.category()));
  if (!is_floating(type)) return minimum(maximum(x, low), high);
  return invoke(clip_operator(), {type == x.dtype() ? x : x.cast(type)}, to);
}
NDArray clip_(const NDArray& x, Number low, Number high) {
  const ClipAttributes to = range(x, low.value(), high.value());
  return is_floating(x.dtype()) ? invoke_in_place(clip_operator(), {x}, to) : minimum_(maximum_(x, low), high);
}

const OpDef& negative_operator();

OpDef negative_op() {
  return unary<Negative>("negative")
      .gradient([](const OpCall&, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {negative(gradients[0])};
      });
}

NDArray negative(const NDArray& x) { return invoke(negative_operator(), {x})[0]; }
NDArray negative_(const NDArray& x) { return invoke_in_place(negative_operator(), {x}); }

}  // namespace paceline
