#include "dense/dense.h"

#include "matmul/matmul.h"
#include "reduce/reduce.h"
#include "unary/unary.h"

#include <paceline/array_recorder.h>
#include <paceline/detail/gemm_bias.h>

namespace paceline {

const OpDef& dense_operator();
const OpDef& dense_relu_operator();
const OpDef& dense_gelu_tanh_operator();
const OpDef& relu_operator();
const OpDef& relu_backward_operator();
const OpDef& gelu_tanh_operator();

namespace {

bool flattens(const void* attributes) { return static_cast<const DenseAttributes*>(attributes)->flatten; }

// Rows of `columns` elements, however many there are.
NDArray as_rows(const NDArray& x, std::int64_t rows, std::int64_t columns) {
  return x.ndim() == 2 ? x : x.contiguous().view({rows, columns});
}

std::int64_t row_count(const Shape& x, bool flatten) {
  std::int64_t rows = 1;
  for (int i = 0; i < (flatten ? 1 : x.ndim() - 1); ++i) rows *= x[i];
  return rows;
}

ArraySpec dense_spec(const char* name, const std::vector<NDArray>& inputs, const void* attributes) {
  const NDArray& x = inputs[0];
  const NDArray& weight = inputs[1];
  const NDArray& bias = inputs[2];
  require(x.ndim() >= 1, "[", name, "] x has 0 dimensions, expected at least 1");
  require(is_floating(x.dtype()), "[", name, "] x is ", name_of(x.dtype()), ", expected a floating type");
  require(weight.ndim() == 2, "[", name, "] weight has ", weight.ndim(), " dimensions, expected 2");
  require(weight.dtype() == x.dtype(), "[", name, "] weight is ", name_of(weight.dtype()), ", x is ",
          name_of(x.dtype()));
  const bool flatten = flattens(attributes);
  std::int64_t columns = 1;
  for (int i = flatten ? 1 : x.ndim() - 1; i < x.ndim(); ++i) columns *= x.size(i);
  require(weight.size(1) == columns, "[", name, "] weight has shape ", weight.shape(), ", expected (any, ", columns,
          ") for x of shape ", x.shape());
  if (!bias.is_none())
    require(bias.shape() == Shape{weight.size(0)} && bias.dtype() == x.dtype(), "[", name, "] bias is ",
            bias.describe(), ", expected ", name_of(x.dtype()), " ", Shape{weight.size(0)});
  Shape shape{x.size(0), weight.size(0)};
  if (!flatten) {
    shape = x.shape();
    shape[x.ndim() - 1] = weight.size(0);
  }
  return {shape, x.dtype()};
}

// Without a gradient.
OpDef dense_and(const char* name, const detail::Epilogue& epilogue) {
  return OpDef(name)
      .attributes<DenseAttributes>()
      .input("x")
      .input("weight")
      .optional_input("bias")
      .infer([name](const std::vector<NDArray>& inputs, const void* attributes) {
        return std::vector<ArraySpec>{dense_spec(name, inputs, attributes)};
      })
      .forward([name, epilogue](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        const NDArray& weight = inputs[1];
        const ArraySpec spec = dense_spec(name, inputs, attributes);
        const NDArray out(spec.shape, spec.dtype, x.device(), x.engine());
        const std::int64_t rows = row_count(x.shape(), flattens(attributes));
        const NDArray in = as_rows(x, rows, weight.size(1)), result = as_rows(out, rows, weight.size(0));
        detail::gemm_bias(in, weight, true, inputs[2], result, epilogue);
        return std::vector<NDArray>{out};
      })
      .text([](const void* attributes) {
        return AttributeText{{"flatten", flattens(attributes) ? "1" : "0"}};
      });
}

// `of_product`: the gradient of the result before an activation.
std::vector<Gradient> gradients_of(const OpCall& call, const NDArray& of_product) {
  const NDArray& x = call.inputs[0];
  const NDArray& weight = call.inputs[1];
  const std::int64_t rows = row_count(x.shape(), call.attributes<DenseAttributes>().flatten);
  const NDArray gradient = as_rows(of_product, rows, weight.size(0));
  std::vector<Gradient> result(3);
  if (call.wants_gradient(0)) result[0] = matmul(gradient, weight).view(x.shape());
  const NDArray in = as_rows(x, rows, weight.size(1));
  const bool biased = call.input_specs[2].shape.ndim() == 1 && call.wants_gradient(2);
  if (call.wants_gradient(1) && biased && !detail::array_recorder()) {
    const NDArray of_weight(weight.shape(), weight.dtype(), weight.device(), weight.engine());
    const NDArray of_bias({weight.size(0)}, weight.dtype(), weight.device(), weight.engine());
    if (detail::gemm_sums(gradient, in, of_weight, of_bias)) {
      result[1] = of_weight;
      result[2] = of_bias;
      return result;
    }
  }
  if (call.wants_gradient(1)) result[1] = matmul(gradient, in, true);
  if (biased) result[2] = sum(gradient, {0});
  return result;
}

}  // namespace

OpDef dense_op() {
  return dense_and("dense", {})
      .saves_inputs({0, 1})
      .gradient(
          [](const OpCall& call, const std::vector<NDArray>& gradients) { return gradients_of(call, gradients[0]); });
}

OpDef dense_relu_op() {
  return dense_and("dense_relu", {.kernel = relu_operator().kernel()})
      .saves_inputs({0, 1})
      .saves_outputs({0})
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        return gradients_of(call, invoke(relu_backward_operator(), {gradients[0], call.outputs[0]})[0]);
      });
}

OpDef dense_gelu_tanh_op() {
  return dense_and("dense_gelu_tanh", {detail::OnTheWay::kGeluTanh, gelu_tanh_operator().kernel()});
}

NDArray dense(const NDArray& x, const NDArray& weight, const NDArray& bias, bool flatten, Activation activation) {
  if (activation == Activation::kGeluTanh && detail::array_recorder())
    return gelu_tanh(dense(x, weight, bias, flatten));
  const OpDef& op = activation == Activation::kNone   ? dense_operator()
                    : activation == Activation::kRelu ? dense_relu_operator()
                                                      : dense_gelu_tanh_operator();
  return invoke(op, {x, weight, bias}, DenseAttributes{flatten});
}

}  // namespace paceline
