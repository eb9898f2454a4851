#include "attention/attention.h"

#include "binary/binary.h"
#include "cumsum/cumsum.h"
#include "matmul/matmul.h"
#include "reduce/reduce.h"
#include "shared/wide.h"
#include "softmax/softmax.h"
#include "where/where.h"

#include <cmath>
#include <limits>

namespace paceline {

const OpDef& attention_operator();
const OpDef& softmax_backward_operator();

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const AttentionAttributes& of(const void* attributes) { return *static_cast<const AttentionAttributes*>(attributes); }

double scale_of(const AttentionAttributes& how, const Shape& query) {
  return how.scale ? *how.scale : 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, query.back())));
}

Shape leading(const Shape& shape) {
  return Shape(std::span<const std::int64_t>(shape.begin(), static_cast<std::size_t>(shape.ndim() - 2)));
}

Shape with_matrix(Shape shape, std::int64_t rows, std::int64_t columns) {
  shape.push_back(rows);
  shape.push_back(columns);
  return shape;
}

// The shape of the scores.
Shape check(const std::vector<NDArray>& inputs) {
  const auto& [query, key, value, mask] = std::tie(inputs[0], inputs[1], inputs[2], inputs[3]);
  for (const NDArray* x : {&query, &key, &value})
    require(is_floating(x->dtype()) && x->dtype() == query.dtype() && x->ndim() >= 2, "[attention] query is ",
            query.describe(), ", key ", key.describe(), " and value ", value.describe(),
            ", expected one floating type and at least 2 dimensions");
  require(query.size(-1) == key.size(-1) && key.size(-2) == value.size(-2), "[attention] query ", query.shape(),
          ", key ", key.shape(), " and value ", value.shape(), " do not fit");
  const Shape batch = broadcast(broadcast(leading(query.shape()), leading(key.shape())), leading(value.shape()));
  const Shape scores = with_matrix(batch, query.size(-2), key.size(-2));
  require(mask.is_none() || ((mask.dtype() == DType::kBool || mask.dtype() == query.dtype()) &&
                             broadcast(mask.shape(), scores) == scores),
          "[attention] mask is ", mask.is_none() ? "none" : mask.describe(), ", expected bool or ",
          name_of(query.dtype()), " that broadcasts to ", scores);
  return scores;
}

// true where key j is no later than query i
NDArray lower_triangle(std::int64_t queries, std::int64_t keys, const NDArray& near) {
  const auto numbers = [&](const Shape& shape, int axis) {
    return cumsum(NDArray::full(shape, 1, DType::kInt64, near.device(), near.engine()), axis);
  };
  return greater_equal(numbers({queries, 1}, 0), numbers({1, keys}, 1));
}

// The share of each key in each result. Rows of scores that are all -infinity give zeros.
NDArray shares(const NDArray& query, const NDArray& key, const NDArray& mask, const AttentionAttributes& how) {
  NDArray scores = batch_matmul(query, key, false, true) * scale_of(how, query.shape());
  if (how.causal) scores = where(lower_triangle(query.size(-2), key.size(-2), query), scores, -kInfinity);
  if (mask.is_none() || scores.size() == 0) return softmax(scores);
  scores = mask.dtype() == DType::kBool ? where(mask, scores, -kInfinity) : scores + widened(mask);
  const NDArray blind = equal(max(scores, {-1}, true), -kInfinity);
  return where(blind, 0, softmax(where(blind, 0, scores)));
}

std::vector<Gradient> gradient(const OpCall& call, const std::vector<NDArray>& gradients) {
  const NDArray query = widened(call.inputs[0]), key = widened(call.inputs[1]), value = widened(call.inputs[2]);
  const NDArray& probabilities = call.outputs[1];
  const NDArray dy = widened(gradients[0]);
  std::vector<Gradient> result(4);
  const auto give = [&](std::size_t input, const NDArray& x) {
    result[input] = in_type(sum_to(x, call.input_specs[input].shape), call.input_specs[input].dtype);
  };
  if (call.wants_gradient(2)) give(2, batch_matmul(probabilities, dy, true));
  const ArraySpec& mask = call.input_specs[3];
  const bool added = !call.inputs[3].is_none() && is_floating(mask.dtype);
  if (!call.wants_gradient(0) && !call.wants_gradient(1) && !(added && call.wants_gradient(3))) return result;
  const NDArray shares_gradient = batch_matmul(dy, value, false, true);
  const NDArray scores_gradient =
      invoke(softmax_backward_operator(), {shares_gradient, probabilities}, SoftmaxAttributes{-1});
  const double scale = scale_of(call.attributes<AttentionAttributes>(), query.shape());
  if (call.wants_gradient(0)) give(0, batch_matmul(scores_gradient, key) * scale);
  if (call.wants_gradient(1)) give(1, batch_matmul(scores_gradient, query, true) * scale);
  if (added && call.wants_gradient(3)) give(3, scores_gradient);
  return result;
}

}  // namespace

OpDef attention_op() {
  return OpDef("attention")
      .attributes<AttentionAttributes>()
      .input("query")
      .input("key")
      .input("value")
      .optional_input("mask")
      .output("out")
      .auxiliary_output("shares")
      .saves_inputs({0, 1, 2, 3})
      .saves_outputs({1})
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        const NDArray& query = inputs[0];
        Shape scores = check(inputs), out = scores;
        out[out.ndim() - 1] = inputs[2].size(-1);
        return std::vector<ArraySpec>{{out, query.dtype()}, {scores, wide_type(query.dtype())}};
      })
      .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
        const Shape scores = check(inputs);
        NDArray probabilities = shares(widened(inputs[0]), widened(inputs[1]), inputs[3], of(attributes));
        if (probabilities.shape() != scores) probabilities = probabilities.broadcast_to(scores).clone();
        return std::vector<NDArray>{in_type(batch_matmul(probabilities, widened(inputs[2])), inputs[0].dtype()),
                                    probabilities};
      })
      .gradient(gradient)
      .text([](const void* attributes) {
        const auto& [causal, scale] = of(attributes);
        return AttributeText{{"causal", causal ? "1" : "0"}, {"scale", scale ? str(*scale) : "1 / sqrt(e)"}};
      });
}

NDArray attention(const NDArray& query, const NDArray& key, const NDArray& value, const NDArray& mask,
                  const AttentionAttributes& attributes) {
  return invoke(attention_operator(), {query, key, value, mask}, attributes);
}

}  // namespace paceline
