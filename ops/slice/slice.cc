#include "slice/slice.h"

#include "shared/text.h"

#include <algorithm>

namespace paceline {

const OpDef& slice_operator();

namespace {

// Attributes with positive axis and positions.
SliceAttributes resolve(const Shape& shape, const void* attributes) {
  const auto& given = *static_cast<const SliceAttributes*>(attributes);
  SliceAttributes result;
  result.axis = normalize_axis(given.axis, shape.ndim(), "slice");
  const std::int64_t size = shape[result.axis];
  result.begin = given.begin < 0 ? given.begin + size : given.begin;
  result.end = std::min(size, given.end < 0 ? given.end + size : given.end);
  require(0 <= result.begin && result.begin <= result.end, "[slice] [", given.begin, ", ", given.end,
          ") is no range of axis ", given.axis, " of shape ", shape);
  return result;
}

}  // namespace

OpDef slice_op() {
  return OpDef("slice")
      .attributes<SliceAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto [axis, begin, end] = resolve(inputs[0].shape(), attributes);
        Shape shape = inputs[0].shape();
        shape[axis] = end - begin;
        return std::vector<ArraySpec>{{shape, inputs[0].dtype()}};
      })
      .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto [axis, begin, end] = resolve(inputs[0].shape(), attributes);
        return std::vector<NDArray>{inputs[0].narrow(axis, begin, end)};
      })
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const NDArray& gradient = gradients[0];
        const Shape& shape = call.input_specs[0].shape;
        const auto [axis, begin, end] = resolve(shape, call.attribute_data.get());
        const NDArray whole = NDArray::zeros(shape, gradient.dtype(), gradient.device(), gradient.engine());
        if (gradient.size() > 0) whole.narrow(axis, begin, end).copy_from(gradient);
        return {whole};
      })
      .text([](const void* attributes) {
        const auto& [axis, begin, end] = *static_cast<const SliceAttributes*>(attributes);
        return AttributeText{{"axis", str(axis)}, {"begin", str(begin)}, {"end", str(end)}};
      });
}

NDArray slice(const NDArray& x, int axis, std::int64_t begin, std::int64_t end) {
  return invoke(slice_operator(), {x}, SliceAttributes{axis, begin, end});
}

std::vector<NDArray> split(const NDArray& x, int parts, int axis) {
  const std::int64_t size = x.size(axis);
  require(parts > 0 && size % parts == 0, "[split] axis ", axis, " of shape ", x.shape(), " cannot be cut into ", parts,
          " equal parts");
  std::vector<NDArray> result;
  for (int i = 0; i < parts; ++i) result.push_back(slice(x, axis, i * (size / parts), (i + 1) * (size / parts)));
  return result;
}

std::vector<NDArray> split(const NDArray& x, const std::vector<std::int64_t>& sizes, int axis) {
  std::int64_t end = 0;
  bool right = true;
  for (const std::int64_t size : sizes) {
    right = right && size >= 0;
    end += size;
  }
  require(right && end == x.size(axis), "[split] axis ", axis, " of x, ", x.describe(), ", cannot be cut into ",
          text_of(sizes));
  std::vector<NDArray> result;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    result.push_back(slice(x, axis, begin, begin + size));
    begin += size;
  }
  return result;
}

}  // namespace paceline
