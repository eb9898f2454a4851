#include "binary/functors.h"
#include "binary/schema.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline {

using namespace functors;

namespace {

template <class F, class T>
using result_t = std::conditional_t<kIsComparison<F>, bool, T>;

template <class F>
void binary_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  visit_operand<F>(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    detail::elementwise_cuda<result_t<F, T>, T, T>(context, F(), out[0], in[0], in[1]);
  });
}

// F with one argument fixed, which travels with the launch.
template <class F, class A>
struct WithNumber {
  A number;
  bool first;
  PACELINE_HOST_DEVICE auto operator()(A x) const { return first ? F()(number, x) : F()(x, number); }
};

template <class F>
void scalar_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const auto& scalar = *static_cast<const ScalarAttributes*>(attributes);
  visit_operand<F>(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = accumulator_t<T>;
    const A number = static_cast<A>(detail::convert<T>(scalar.scalar));
    detail::elementwise_cuda<result_t<F, T>, T>(context, WithNumber<F, A>{number, scalar.scalar_first}, out[0], in[0]);
  });
}

}  // namespace

#define PACELINE_BINARY(name, Functor)                                                \
  OpDef name##_on_cuda(OpDef op) { return std::move(op).cuda(binary_cuda<Functor>); } \
  OpDef name##_scalar_on_cuda(OpDef op) { return std::move(op).cuda(scalar_cuda<Functor>); }

PACELINE_BINARY(add, Add)
PACELINE_BINARY(subtract, Subtract)
PACELINE_BINARY(multiply, Multiply)
PACELINE_BINARY(divide, Divide)
PACELINE_BINARY(power, Power)
PACELINE_BINARY(maximum, Maximum)
PACELINE_BINARY(minimum, Minimum)
PACELINE_BINARY(equal, Equal)
PACELINE_BINARY(not_equal, NotEqual)
PACELINE_BINARY(greater, Greater)
PACELINE_BINARY(greater_equal, GreaterEqual)
PACELINE_BINARY(less, Less)
PACELINE_BINARY(less_equal, LessEqual)
PACELINE_BINARY(logical_and, LogicalAnd)
PACELINE_BINARY(logical_or, LogicalOr)
PACELINE_BINARY(logical_xor, LogicalXor)
PACELINE_BINARY(bitwise_and, BitwiseAnd)
PACELINE_BINARY(bitwise_or, BitwiseOr)
PACELINE_BINARY(bitwise_xor, BitwiseXor)
PACELINE_BINARY(remainder, Remainder)
PACELINE_BINARY(floor_divide, FloorDivide)
#undef PACELINE_BINARY

}  // namespace paceline
