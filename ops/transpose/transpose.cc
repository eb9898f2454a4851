#include "transpose/transpose.h"

#include "shared/text.h"

#include <algorithm>

namespace paceline {

const OpDef& transpose_operator();

namespace {

std::vector<int> resolve(const NDArray& x, const void* attributes) {
  const std::vector<int>& given = static_cast<const TransposeAttributes*>(attributes)->axes;
  std::vector<int> axes;
  if (given.empty())
    for (int i = x.ndim() - 1; i >= 0; --i) axes.push_back(i);
  for (const int axis : given) axes.push_back(normalize_axis(axis, x.ndim(), "transpose"));
  std::vector<int> sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  bool permutation = static_cast<int>(axes.size()) == x.ndim();
  for (int i = 0; permutation && i < x.ndim(); ++i) permutation = sorted[static_cast<std::size_t>(i)] == i;
  require(permutation, "[transpose] axes ", text_of(given), " are no permutation of the ", x.ndim(), " axes of x");
  return axes;
}

}  // namespace

OpDef transpose_op() {
  return OpDef("transpose")
      .attributes<TransposeAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        Shape shape;
        for (const int axis : resolve(inputs[0], attributes)) shape.push_back(inputs[0].size(axis));
        return std::vector<ArraySpec>{{shape, inputs[0].dtype()}};
      })
      .composed_of([](const std::vector<NDArray>& inputs, const void* attributes) {
        return std::vector<NDArray>{inputs[0].permute(resolve(inputs[0], attributes))};
      })
      .text([](const void* attributes) {
        return AttributeText{{"axes", text_of(static_cast<const TransposeAttributes*>(attributes)->axes)}};
      });
}

NDArray transpose(const NDArray& x, std::vector<int> axes) {
  return invoke(transpose_operator(), {x}, TransposeAttributes{std::move(axes)});
}

}  // namespace paceline
