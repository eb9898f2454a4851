#include "slice/slice.h"

#include "shared/text.h"

#include <algorithm>
#include <functional>

namespace paceline {

const OpDef& slice_operator();
const OpDef& split_operator();

namespace {

// Checks the attributes. Returns them with the axis and the positions counted from the front, and with `end` at most
// the size of the axis.
SliceAttributes resolve(const Shape& shape, const void* attributes) {
  const auto& given = *static_cast<const SliceAttributes*>(attributes);
  SliceAttributes result;
  result.axis = normalize_axis(given.axis, shape.ndim(), "slice");
  const std::int64_t size = shape[result.axis];
  result.begin = given.begin < 0 ? given.begin + size : given.begin;
  result.end = std::min(size, given.end < 0 ? given.end + size : given.end);
  require(0 <= result.begin && result.begin <= result.end, "[slice] [", given.begin, ", ", given.end,
          ") is no range of axis ", given.axis, " of shape ", shape);
  require(given.step >= 1, "[slice] the step is ", given.step, ", expected at least 1");
  result.step = given.step;
  return result;
}

// Calls part(begin, end) for each of the parts.
template <class Part>
void for_each_part(const std::vector<std::int64_t>& sizes, const Part& part) {
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    part(begin, begin + size);
    begin += size;
  }
}

// The axis, counted from the front. Throws InvalidArgument unless the sizes add up to the size of the axis.
int split_axis(const Shape& shape, const void* attributes) {
  const auto& [given, sizes] = *static_cast<const SplitAttributes*>(attributes);
  const int axis = normalize_axis(given, shape.ndim(), "split");
  std::int64_t sum = 0;
  bool right = true;
  for (const std::int64_t size : sizes) {
    right = right && size >= 0 && size <= shape[axis];
    sum += size;
  }
  require(right && sum == shape[axis], "[split] axis ", given, " of x of shape ", shape, " cannot be cut into ",
          text_of(sizes));
  return axis;
}

const std::vector<std::int64_t>& sizes_of(const void* attributes) {
  return static_cast<const SplitAttributes*>(attributes)->sizes;
}

}  // namespace

OpDef slice_op() {
  return OpDef("slice")
      .attributes<SliceAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto [axis, begin, end, step] = resolve(inputs[0].shape(), attributes);
        Shape shape = inputs[0].shape();
        shape[axis] = begin == end ? 0 : (end - begin - 1) / step + 1;
        return std::vector<ArraySpec>{{shape, inputs[0].dtype()}};
      })
      .composed_of([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto [axis, begin, end, step] = resolve(inputs[0].shape(), attributes);
        return std::vector<NDArray>{inputs[0].narrow(axis, begin, end, step)};
      })
      .text([](const void* attributes) {
        const auto& [axis, begin, end, step] = *static_cast<const SliceAttributes*>(attributes);
        return AttributeText{{"axis", str(axis)}, {"begin", str(begin)}, {"end", str(end)}, {"step", str(step)}};
      });
}

NDArray slice(const NDArray& x, int axis, std::int64_t begin, std::int64_t end, std::int64_t step) {
  return invoke(slice_operator(), {x}, SliceAttributes{axis, begin, end, step});
}

OpDef split_op() {
  return OpDef("split")
      .attributes<SplitAttributes>()
      .input("x")
      .output("parts")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const int axis = split_axis(inputs[0].shape(), attributes);
        std::vector<ArraySpec> specs;
        for (const std::int64_t size : sizes_of(attributes)) {
          specs.push_back({inputs[0].shape(), inputs[0].dtype()});
          specs.back().shape[axis] = size;
        }
        return specs;
      })
      .composed_of([](const std::vector<NDArray>& inputs, const void* attributes) {
        const int axis = split_axis(inputs[0].shape(), attributes);
        std::vector<NDArray> parts;
        for_each_part(sizes_of(attributes), [&](std::int64_t begin, std::int64_t end) {
          parts.push_back(inputs[0].narrow(axis, begin, end));
        });
        return parts;
      })
      .text([](const void* attributes) {
        const auto& [axis, sizes] = *static_cast<const SplitAttributes*>(attributes);
        return AttributeText{{"axis", str(axis)}, {"sizes", text_of(sizes)}};
      });
}

std::vector<NDArray> split(const NDArray& x, int parts, int axis) {
  const std::int64_t size = x.size(axis);
  require(parts > 0 && size % parts == 0, "[split] axis ", axis, " of x, ", x.describe(), ", cannot be cut into ",
          parts, " equal parts");
  return split(x, std::vector<std::int64_t>(static_cast<std::size_t>(parts), size / parts), axis);
}

std::vector<NDArray> split(const NDArray& x, const std::vector<std::int64_t>& sizes, int axis) {
  const std::shared_ptr<const void> how = std::make_shared<SplitAttributes>(SplitAttributes{axis, sizes});
  return invoke(split_operator(), {x}, how);
}

}  // namespace paceline
