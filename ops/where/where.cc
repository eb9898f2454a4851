#include "where/where.h"

#include "binary/binary.h"
#include "reduce/reduce.h"
#include "where/functors.h"

#include <paceline/detail/elementwise.h>

namespace paceline {

const OpDef& where_operator();

namespace {

void where_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  visit_dtype(in[1].dtype, [&]<class T>(TypeTag<T>) {
    detail::elementwise<T, bool, T, T>(functors::Choose(), out[0], in[0], in[1], in[2]);
  });
}

NDArray in_type(const NDArray& x, DType dtype) { return x.dtype() == dtype ? x : x.cast(dtype); }

// A number as an array, and the array beside it, in the type of a result of both.
NDArray as_array(Number number, const NDArray& beside) {
  const DType type = result_type(beside, number);
  require_holds("where", type, number.value());
  return NDArray::full({}, number.value(), type, beside.device(), beside.engine());
}

}  // namespace

OpDef where_op() {
  return OpDef("where")
      .input("condition")
      .input("a")
      .input("b")
      .saves_inputs({0})
      .elementwise()
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        const auto& [condition, a, b] = std::tie(inputs[0], inputs[1], inputs[2]);
        require(condition.dtype() == DType::kBool, "[where] condition is ", condition.describe(), ", expected bool");
        require(a.dtype() == b.dtype(), "[where] a is ", a.describe(), " and b is ", b.describe(),
                ", cast one of them");
        return std::vector<ArraySpec>{{broadcast(broadcast(a.shape(), b.shape()), condition.shape()), a.dtype()}};
      })
      .cpu(where_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        const NDArray& condition = call.inputs[0];
        std::vector<Gradient> result(3);
        if (!is_floating(gradients[0].dtype())) return result;
        if (call.wants_gradient(1)) result[1] = sum_to(where(condition, gradients[0], 0), call.input_specs[1].shape);
        if (call.wants_gradient(2)) result[2] = sum_to(where(condition, 0, gradients[0]), call.input_specs[2].shape);
        return result;
      });
}

NDArray where(const NDArray& condition, const NDArray& a, const NDArray& b) {
  const DType type = result_type(a, b);
  return invoke(where_operator(), {condition, in_type(a, type), in_type(b, type)})[0];
}
NDArray where(const NDArray& condition, const NDArray& a, Number b) { return where(condition, a, as_array(b, a)); }
NDArray where(const NDArray& condition, Number a, const NDArray& b) { return where(condition, as_array(a, b), b); }

}  // namespace paceline
