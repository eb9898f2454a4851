#include "attention/attention.h"

#include "attention/cuda_tiles.h"
#include "attention/tiles.h"
#include "reduce/reduce.h"
#include "shared/like.h"
#include "shared/wide.h"

#include <cmath>

namespace paceline {

const OpDef& attention_operator();

namespace {

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

// Two numbers for each row.
Shape sums_of(Shape shape) {
  shape[shape.ndim() - 1] = 2;
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

// The type that a call computes in.
DType computed_type(const std::vector<NDArray>& inputs) {
  const NDArray& query = inputs[0];
  const std::int64_t columns = std::max(query.size(-1), inputs[2].size(-1));
  return runs_on_tensor_cores(query.dtype(), query.device(), columns) ? query.dtype() : wide_type(query.dtype());
}

// The operands of one call, ready for the tiles: of one type, broadcast over the leading axes.
AttentionArrays arrays_of(const std::vector<NDArray>& inputs, const Shape& scores) {
  const DType dtype = computed_type(inputs);
  const auto matrices = [&](const NDArray& x) {
    const NDArray wide = in_type(x, dtype);
    return (has_plain_rows(wide) ? wide : wide.contiguous())
        .broadcast_to(with_matrix(leading(scores), x.size(-2), x.size(-1)));
  };
  const NDArray& mask = inputs[3];
  return {matrices(inputs[0]), matrices(inputs[1]), matrices(inputs[2]),
          mask.is_none() ? mask : (is_half(mask.dtype()) ? in_type(mask, dtype) : mask).broadcast_to(scores)};
}

std::vector<Gradient> gradient(const OpCall& call, const std::vector<NDArray>& gradients) {
  const Shape scores = check(call.inputs);
  const AttentionArrays arrays = arrays_of(call.inputs, scores);
  const AttentionAttributes& how = call.attributes<AttentionAttributes>();
  const DType dtype = arrays.query.dtype();
  const NDArray out = in_type(call.outputs[0], dtype), dy = in_type(gradients[0], dtype);
  const auto like = [](const NDArray& x) { return in_order_of(x, x.shape(), x.dtype(), 1); };
  const bool adds = !arrays.mask.is_none() && is_floating(arrays.mask.dtype()) && call.wants_gradient(3);
  const AttentionArrays wide{like(arrays.query), like(arrays.key), like(arrays.value),
                             adds ? like(arrays.mask) : NDArray()};
  attend_backward(arrays, how.causal, scale_of(how, arrays.query.shape()), out, call.outputs[1],
                  has_plain_rows(dy) ? dy : dy.contiguous(), wide);
  std::vector<Gradient> result(4);
  const NDArray* const found[] = {&wide.query, &wide.key, &wide.value, &wide.mask};
  for (std::size_t i = 0; i < result.size(); ++i)
    if (!found[i]->is_none() && call.wants_gradient(i))
      result[i] = in_type(sum_to(*found[i], call.input_specs[i].shape), call.input_specs[i].dtype);
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
      .auxiliary_output("sums")
      .saves_inputs({0, 1, 2, 3})
      .saves_outputs({0, 1})
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        Shape out = check(inputs);
        out[out.ndim() - 1] = inputs[2].size(-1);
        return std::vector<ArraySpec>{{out, inputs[0].dtype()}, {sums_of(out), wide_type(inputs[0].dtype())}};
      })
      .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& query = inputs[0];
        Shape shape = check(inputs);
        const AttentionArrays arrays = arrays_of(inputs, shape);
        shape[shape.ndim() - 1] = inputs[2].size(-1);
        const NDArray out = in_order_of(arrays.query, shape, arrays.query.dtype(), 1);
        const NDArray sums(sums_of(shape), wide_type(out.dtype()), out.device(), out.engine());
        attend(arrays, of(attributes).causal, scale_of(of(attributes), query.shape()), out, sums);
        return std::vector<NDArray>{in_type(out, query.dtype()), sums};
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
