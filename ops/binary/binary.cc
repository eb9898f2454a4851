#include "binary/binary.h"

#include "binary/schema.h"
#include "copy/copy.h"
#include "reduce/reduce.h"
#include "shared/vector_map.h"
#include "unary/unary.h"
#include "where/where.h"

#include <cmath>
#include <limits>

namespace paceline {

using namespace functors;

void check_binary_type(const char* name, DType dtype, Operands operands) {
  const auto expect = [&](bool right, const char* expected) {
    if (!right) throw InvalidArgument(str("[", name, "] a is ", name_of(dtype), ", expected ", expected));
  };
  switch (operands) {
    case Operands::kAll: return;
    case Operands::kNumbers: return expect(dtype != DType::kBool, "a type other than bool");
    case Operands::kFloating: return expect(is_floating(dtype), "a floating type");
    case Operands::kWhole: return expect(!is_floating(dtype), "integers or bool");
  }
}

OpDef binary_schema(const char* name, Operands operands) {
  return OpDef(name).input("a").input("b").elementwise().infer([=](const std::vector<NDArray>& inputs, const void*) {
    const DType dtype = inputs[0].dtype();
    if (dtype != inputs[1].dtype())
      throw InvalidArgument(
          str("[", name, "] a is ", name_of(dtype), " and b is ", name_of(inputs[1].dtype()), ", cast one of them"));
    check_binary_type(name, dtype, operands);
    const Shape shape =
        inputs[0].shape() == inputs[1].shape() ? inputs[0].shape() : broadcast(inputs[0].shape(), inputs[1].shape());
    return std::vector<ArraySpec>{{shape, operands == Operands::kAll ? DType::kBool : dtype}};
  });
}

OpDef scalar_schema(const char* name, Operands operands) {
  return OpDef(name)
      .attributes<ScalarAttributes>()
      .input("a")
      .elementwise()
      .infer([=](const std::vector<NDArray>& inputs, const void*) {
        check_binary_type(name, inputs[0].dtype(), operands);
        return std::vector<ArraySpec>{
            {inputs[0].shape(), operands == Operands::kAll ? DType::kBool : inputs[0].dtype()}};
      })
      .text([](const void* attributes) {
        const auto& scalar = *static_cast<const ScalarAttributes*>(attributes);
        return AttributeText{{"scalar", str(scalar.scalar)}, {"scalar_first", scalar.scalar_first ? "1" : "0"}};
      });
}

namespace {

template <class F, class T>
void apply(const Tensor& out, const Tensor& a, const Tensor& b) {
  if constexpr (kIsComparison<F>)
    detail::elementwise<bool, T, T>(F(), out, a, b);
  else if constexpr (operands_of<F>() == Operands::kWhole || std::is_same_v<F, Remainder> ||
                     std::is_same_v<F, FloorDivide>)
    detail::elementwise<T, T, T>(F(), out, a, b);
  else
    map_elements<T>(F(), out, a, b);
}

template <class F>
void binary_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  visit_operand<F>(in[0].dtype, [&]<class T>(TypeTag<T>) { apply<F, T>(out[0], in[0], in[1]); });
}

template <class F>
void scalar_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  visit_operand<F>(in[0].dtype, [&]<class T>(TypeTag<T>) {
    with_scalar<T>(attributes, [&](const Tensor& scalar, bool first) {
      first ? apply<F, T>(out[0], scalar, in[0]) : apply<F, T>(out[0], in[0], scalar);
    });
  });
}

template <class F>
OpDef binary(const char* name) {
  return binary_schema(name, operands_of<F>()).cpu(binary_cpu<F>);
}

template <class F>
OpDef with_number(const char* name) {
  return scalar_schema(name, operands_of<F>()).cpu(scalar_cpu<F>);
}

NDArray in_type(const NDArray& x, DType dtype) { return x.dtype() == dtype ? x : x.cast(dtype); }

NDArray of_arrays(const OpDef& op, const NDArray& a, const NDArray& b) {
  const DType type = result_type(a, b);
  std::vector<NDArray> inputs;
  inputs.reserve(2);
  inputs.push_back(in_type(a, type));
  inputs.push_back(in_type(b, type));
  return std::move(invoke(op, std::move(inputs))[0]);
}

NDArray of_number(const OpDef& op, const NDArray& a, Number number, bool first) {
  const DType type = result_type(a, number);
  require_holds(op.name().c_str(), type, number.value());
  return invoke(op, {in_type(a, type)}, ScalarAttributes{number.value(), first});
}

void require_type_stays(const OpDef& op, const NDArray& a, DType type) {
  require(type == a.dtype(), "[", op.name(), "] gives ", name_of(type), ", which cannot overwrite ", a.describe(),
          "; use the form that returns a new array");
}

NDArray of_arrays_in_place(const OpDef& op, const NDArray& a, const NDArray& b) {
  require_type_stays(op, a, result_type(a, b));
  return invoke_in_place(op, {a, in_type(b, a.dtype())});
}

NDArray of_number_in_place(const OpDef& op, const NDArray& a, Number number) {
  require_type_stays(op, a, result_type(a, number));
  require_holds(op.name().c_str(), a.dtype(), number.value());
  return invoke_in_place(op, {a}, ScalarAttributes{number.value(), false});
}

using Gradients = std::vector<Gradient>;
using Arrays = std::vector<NDArray>;

// The gradients of (a, b) from two functions that give them in the broadcast shape; each runs only if it is wanted.
template <class A, class B>
Gradients both(const OpCall& call, const A& of_a, const B& of_b) {
  Gradients result(2);
  if (call.wants_gradient(0)) result[0] = sum_to(of_a(), call.input_specs[0].shape);
  if (call.wants_gradient(1)) result[1] = sum_to(of_b(), call.input_specs[1].shape);
  return result;
}

// d a^b / d b, but 0 where a is 0 and b is not negative: there a^b does not depend on b.
NDArray power_by_exponent(const NDArray& a, const NDArray& b, const NDArray& result) {
  const NDArray slope = result * log(a);
  return where(equal(a, 0), where(greater_equal(b, 0), 0, slope), slope);
}

const ScalarAttributes& scalar_of(const OpCall& call) { return call.attributes<ScalarAttributes>(); }

NDArray masked(const NDArray& gradient, const NDArray& chosen) { return where(chosen, gradient, 0); }

// The gradients through maximum or minimum, where `lost` says whose element was not taken; equal ones share.
template <class Lost>
Gradients extreme_gradients(const OpCall& call, const NDArray& gradient, const Lost& lost) {
  const NDArray& a = call.inputs[0];
  const NDArray& b = call.inputs[1];
  const NDArray share = where(equal(a, b), gradient * 0.5, gradient);
  return both(
      call, [&] { return where(lost(a, b), 0, share); }, [&] { return where(lost(b, a), 0, share); });
}

}  // namespace

DType result_type(const NDArray& a, const NDArray& b) {
  const bool by_category = (a.ndim() == 0) != (b.ndim() == 0);
  const NDArray &with_axes = a.ndim() == 0 ? b : a, &without = a.ndim() == 0 ? a : b;
  if (by_category && category_of(without.dtype()) <= category_of(with_axes.dtype())) return with_axes.dtype();
  return result_type(a.dtype(), b.dtype());
}
DType result_type(const NDArray& a, Number b) { return result_type(a.dtype(), b.category()); }

#define PACELINE_BINARY(name, Functor)                                                            \
  const OpDef& name##_operator();                                                                 \
  const OpDef& name##_scalar_operator();                                                          \
  NDArray name(const NDArray& a, const NDArray& b) { return of_arrays(name##_operator(), a, b); } \
  NDArray name(const NDArray& a, Number b) { return of_number(name##_scalar_operator(), a, b, false); }

// Those without a gradient.
#define PACELINE_COMPARISON(name, Functor)             \
  PACELINE_BINARY(name, Functor)                       \
  OpDef name##_op() { return binary<Functor>(#name); } \
  OpDef name##_scalar_op() { return with_number<Functor>(#name "_scalar"); }

#define PACELINE_BOTH_FORMS(name, Functor)                                                                    \
  PACELINE_BINARY(name, Functor)                                                                              \
  NDArray name##_(const NDArray& a, const NDArray& b) { return of_arrays_in_place(name##_operator(), a, b); } \
  NDArray name##_(const NDArray& a, Number b) { return of_number_in_place(name##_scalar_operator(), a, b); }

PACELINE_BOTH_FORMS(add, Add)
PACELINE_BOTH_FORMS(subtract, Subtract)
PACELINE_BOTH_FORMS(multiply, Multiply)
PACELINE_BOTH_FORMS(maximum, Maximum)
PACELINE_BOTH_FORMS(minimum, Minimum)
PACELINE_COMPARISON(equal, Equal)
PACELINE_COMPARISON(not_equal, NotEqual)
PACELINE_COMPARISON(greater, Greater)
PACELINE_COMPARISON(greater_equal, GreaterEqual)
PACELINE_COMPARISON(less, Less)
PACELINE_COMPARISON(less_equal, LessEqual)
PACELINE_COMPARISON(logical_and, LogicalAnd)
PACELINE_COMPARISON(logical_or, LogicalOr)
PACELINE_COMPARISON(logical_xor, LogicalXor)
PACELINE_COMPARISON(bitwise_and, BitwiseAnd)
PACELINE_COMPARISON(bitwise_or, BitwiseOr)
PACELINE_COMPARISON(bitwise_xor, BitwiseXor)
PACELINE_BINARY(remainder, Remainder)
PACELINE_BINARY(floor_divide, FloorDivide)
#undef PACELINE_COMPARISON
#undef PACELINE_BOTH_FORMS
#undef PACELINE_BINARY

const OpDef& divide_operator();
const OpDef& divide_scalar_operator();
NDArray divide(const NDArray& a, const NDArray& b) {
  const bool whole = !is_floating(a.dtype()) && !is_floating(b.dtype());
  return of_arrays(divide_operator(), whole ? a.cast(DType::kFloat32) : a, b);
}
NDArray divide(const NDArray& a, Number b) { return of_number(divide_scalar_operator(), a, b.value(), false); }
NDArray divide(Number a, const NDArray& b) { return of_number(divide_scalar_operator(), b, a.value(), true); }
NDArray divide_(const NDArray& a, const NDArray& b) { return of_arrays_in_place(divide_operator(), a, b); }
NDArray divide_(const NDArray& a, Number b) { return of_number_in_place(divide_scalar_operator(), a, b.value()); }

const OpDef& power_operator();
const OpDef& power_scalar_operator();
NDArray power(const NDArray& a, const NDArray& b) { return of_arrays(power_operator(), a, b); }
NDArray power(const NDArray& a, Number b) {
  if (b.value() == 0.5) return sqrt(is_floating(a.dtype()) ? a : a.cast(DType::kFloat32));
  return of_number(power_scalar_operator(), a, b, false);
}
NDArray power(Number a, const NDArray& b) { return of_number(power_scalar_operator(), b, a, true); }

NDArray remainder(Number a, const NDArray& b) { return of_number(remainder_scalar_operator(), b, a, true); }
NDArray floor_divide(Number a, const NDArray& b) { return of_number(floor_divide_scalar_operator(), b, a, true); }

NDArray logical_not(const NDArray& x) { return equal(x, 0); }
NDArray bitwise_not(const NDArray& x) {
  check_binary_type("bitwise_not", x.dtype(), Operands::kWhole);
  if (x.dtype() == DType::kBool) return logical_not(x);
  return bitwise_xor(x, x.dtype() == DType::kUint8 ? 255 : -1);
}

NDArray isnan(const NDArray& x) { return not_equal(x, x); }
NDArray isinf(const NDArray& x) {
  return is_floating(x.dtype()) ? equal(abs(x), std::numeric_limits<double>::infinity()) : not_equal(x, x);
}
NDArray isfinite(const NDArray& x) {
  return is_floating(x.dtype()) ? less(abs(x), std::numeric_limits<double>::infinity()) : equal(x, x);
}

NDArray subtract(Number a, const NDArray& b) { return of_number(subtract_scalar_operator(), b, a, true); }

OpDef add_op() {
  return binary<Add>("add").gradient([](const OpCall& call, const Arrays& g) {
    return both(
        call, [&] { return g[0]; }, [&] { return g[0]; });
  });
}

OpDef subtract_op() {
  return binary<Subtract>("subtract").gradient([](const OpCall& call, const Arrays& g) {
    return both(
        call, [&] { return g[0]; }, [&] { return -g[0]; });
  });
}

OpDef multiply_op() {
  return binary<Multiply>("multiply").saves_inputs({0, 1}).gradient([](const OpCall& call, const Arrays& g) {
    return both(
        call, [&] { return g[0] * call.inputs[1]; }, [&] { return g[0] * call.inputs[0]; });
  });
}

OpDef divide_op() {
  return binary<Divide>("divide").saves_inputs({1}).saves_outputs({0}).gradient(
      [](const OpCall& call, const Arrays& g) {
        const NDArray scaled = g[0] / call.inputs[1];
        return both(
            // NOLINTNEXTLINE(performance-no-automatic-move): `return` moves no variable of another function
            call, [&] { return scaled; }, [&] { return -scaled * call.outputs[0]; });
      });
}

OpDef power_op() {
  return binary<Power>("power").saves_inputs({0, 1}).saves_outputs({0}).gradient(
      [](const OpCall& call, const Arrays& g) {
        const NDArray& a = call.inputs[0];
        const NDArray& b = call.inputs[1];
        return both(
            call, [&] { return where(equal(b, 0), 0, g[0] * (b * power(a, b - 1))); },
            [&] { return g[0] * power_by_exponent(a, b, call.outputs[0]); });
      });
}

OpDef maximum_op() {
  return binary<Maximum>("maximum").saves_inputs({0, 1}).gradient([](const OpCall& call, const Arrays& g) {
    return extreme_gradients(call, g[0], [](const NDArray& a, const NDArray& b) { return less(a, b); });
  });
}

OpDef minimum_op() {
  return binary<Minimum>("minimum").saves_inputs({0, 1}).gradient([](const OpCall& call, const Arrays& g) {
    return extreme_gradients(call, g[0], [](const NDArray& a, const NDArray& b) { return greater(a, b); });
  });
}

// Both are constant between jumps, at which PyTorch's gradients are these too.
OpDef remainder_op() {
  return binary<Remainder>("remainder").saves_inputs({0, 1}).gradient([](const OpCall& call, const Arrays& g) {
    return both(
        call, [&] { return g[0]; }, [&] { return -g[0] * floor_divide(call.inputs[0], call.inputs[1]); });
  });
}

OpDef floor_divide_op() {
  return binary<FloorDivide>("floor_divide").gradient([](const OpCall& call, const Arrays& g) {
    const NDArray none = NDArray::zeros(g[0].shape(), g[0].dtype(), g[0].device(), g[0].engine());
    return both(
        // NOLINTNEXTLINE(performance-no-automatic-move): `return` moves no variable of another function
        call, [&] { return none; }, [&] { return none; });
  });
}

OpDef remainder_scalar_op() {
  return with_number<Remainder>("remainder_scalar").saves_inputs({0}).gradient([](const OpCall& call, const Arrays& g) {
    if (!scalar_of(call).scalar_first) return Gradients{g[0]};
    return Gradients{-g[0] * floor_divide(scalar_of(call).scalar, call.inputs[0])};
  });
}

OpDef floor_divide_scalar_op() {
  return with_number<FloorDivide>("floor_divide_scalar").gradient([](const OpCall&, const Arrays& g) {
    return Gradients{NDArray::zeros(g[0].shape(), g[0].dtype(), g[0].device(), g[0].engine())};
  });
}

OpDef add_scalar_op() {
  return with_number<Add>("add_scalar").gradient([](const OpCall&, const Arrays& g) { return Gradients{g[0]}; });
}

OpDef subtract_scalar_op() {
  return with_number<Subtract>("subtract_scalar").gradient([](const OpCall& call, const Arrays& g) {
    return Gradients{scalar_of(call).scalar_first ? -g[0] : g[0]};
  });
}

OpDef multiply_scalar_op() {
  return with_number<Multiply>("multiply_scalar").gradient([](const OpCall& call, const Arrays& g) {
    return Gradients{g[0] * scalar_of(call).scalar};
  });
}

OpDef divide_scalar_op() {
  return with_number<Divide>("divide_scalar")
      .saves_inputs({0})
      .saves_outputs({0})
      .gradient([](const OpCall& call, const Arrays& g) {
        if (!scalar_of(call).scalar_first) return Gradients{g[0] / scalar_of(call).scalar};
        return Gradients{-g[0] * call.outputs[0] / call.inputs[0]};
      });
}

OpDef power_scalar_op() {
  return with_number<Power>("power_scalar")
      .saves_inputs({0})
      .saves_outputs({0})
      .gradient([](const OpCall& call, const Arrays& g) {
        const double scalar = scalar_of(call).scalar;
        if (!scalar_of(call).scalar_first) {
          if (scalar == 0) return Gradients{NDArray::zeros(g[0].shape(), g[0].dtype(), g[0].device(), g[0].engine())};
          return Gradients{g[0] * (power(call.inputs[0], scalar - 1) * scalar)};
        }
        if (scalar != 0) return Gradients{g[0] * call.outputs[0] * std::log(scalar)};
        // 0^b is 0 or 1 for b >= 0, and infinite below, where the slope is -inf as PyTorch's is.
        return Gradients{g[0] * where(greater_equal(call.inputs[0], 0), 0.0, call.outputs[0] * std::log(scalar))};
      });
}

OpDef maximum_scalar_op() {
  return with_number<Maximum>("maximum_scalar").saves_inputs({0}).gradient([](const OpCall& call, const Arrays& g) {
    return Gradients{masked(g[0], greater(call.inputs[0], scalar_of(call).scalar))};
  });
}

OpDef minimum_scalar_op() {
  return with_number<Minimum>("minimum_scalar").saves_inputs({0}).gradient([](const OpCall& call, const Arrays& g) {
    return Gradients{masked(g[0], less(call.inputs[0], scalar_of(call).scalar))};
  });
}

}  // namespace paceline
