#include "concat/concat.h"

#include "reshape/reshape.h"
#include "shared/rows.h"
#include "slice/slice.h"

namespace paceline {

const OpDef& concat_operator();

namespace {

int axis_of(const NDArray& first, const void* attributes) {
  return normalize_axis(static_cast<const ConcatAttributes*>(attributes)->axis, first.ndim(), "concat");
}

ArraySpec joined(const std::vector<NDArray>& inputs, int axis) {
  ArraySpec result{inputs[0].shape(), inputs[0].dtype()};
  result.shape[axis] = 0;
  for (const NDArray& x : inputs) {
    bool fits = x.ndim() == inputs[0].ndim() && x.dtype() == inputs[0].dtype();
    for (int i = 0; fits && i < x.ndim(); ++i) fits = i == axis || x.size(i) == inputs[0].size(i);
    require(fits, "[concat] cannot join ", inputs[0].describe(), " and ", x.describe(), " along axis ", axis);
    result.shape[axis] = checked_sum("concat", result.shape[axis], x.size(axis));
  }
  return result;
}

}  // namespace

OpDef concat_op() {
  return OpDef("concat")
      .attributes<ConcatAttributes>()
      .variadic("arrays")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        return std::vector<ArraySpec>{joined(inputs, axis_of(inputs[0], attributes))};
      })
      .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
        const int axis = axis_of(inputs[0], attributes);
        const ArraySpec spec = joined(inputs, axis);
        const NDArray out(spec.shape, spec.dtype, inputs[0].device(), inputs[0].engine());
        std::int64_t begin = 0;
        for (const NDArray& x : inputs) {
          const std::int64_t end = begin + x.size(axis);
          if (x.size() > 0) out.narrow(axis, begin, end).copy_from(x);
          begin = end;
        }
        return std::vector<NDArray>{out};
      })
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const int axis = axis_of(gradients[0], call.attribute_data.get());
        std::vector<Gradient> result;
        std::int64_t begin = 0;
        for (const ArraySpec& spec : call.input_specs) {
          result.emplace_back(gradients[0].narrow(axis, begin, begin + spec.shape[axis]));
          begin += spec.shape[axis];
        }
        return result;
      })
      .text([](const void* attributes) {
        return AttributeText{{"axis", str(static_cast<const ConcatAttributes*>(attributes)->axis)}};
      });
}

NDArray concat(const std::vector<NDArray>& arrays, int axis) {
  return invoke(concat_operator(), arrays, ConcatAttributes{axis});
}

NDArray stack(const std::vector<NDArray>& arrays, int axis) {
  std::vector<NDArray> expanded;
  for (const NDArray& x : arrays) expanded.push_back(expand_dims(x, axis));
  return concat(expanded, axis < 0 && !arrays.empty() ? axis + arrays[0].ndim() + 1 : axis);
}

}  // namespace paceline
