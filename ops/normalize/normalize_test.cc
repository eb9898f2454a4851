#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <cmath>

namespace paceline {
const OpDef& standardize_backward_operator();
const OpDef& standardize_backward_parameters_operator();
}

namespace paceline::test {
namespace {

CaseArray direct(const CaseArray& x, const StandardizeAttributes& how, const CaseArray& scale, const CaseArray& shift) {
  std::int64_t size = 1;
  for (int i = x.shape.ndim() - how.axes; i < x.shape.ndim(); ++i) size *= x.shape[i];
  CaseArray y = x;
  for (std::int64_t first = 0; first < x.shape.size(); first += size) {
    double mean = 0, square = 0;
    for (std::int64_t i = 0; i < size; ++i)
      mean += x.values[static_cast<std::size_t>(first + i)] / static_cast<double>(size);
    if (!how.centered) mean = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      const double d = x.values[static_cast<std::size_t>(first + i)] - mean;
      square += d * d / static_cast<double>(size);
    }
    for (std::int64_t i = 0; i < size; ++i) {
      double& value = y.values[static_cast<std::size_t>(first + i)];
      const auto k = static_cast<std::size_t>(i);
      value = (value - mean) / std::sqrt(square + how.epsilon);
      if (!scale.values.empty()) value *= scale.values[k];
      if (!shift.values.empty()) value += shift.values[k];
    }
  }
  return y;
}

// With scale and shift, as many as `parameters`.
OperatorCase rows(const std::string& name, const Shape& shape, const StandardizeAttributes& how, int parameters) {
  const CaseArray x = sample(shape, 3);
  const Shape last(std::span<const std::int64_t>(shape.end() - how.axes, static_cast<std::size_t>(how.axes)));
  const CaseArray scale = parameters > 0 ? sample(last, 5) : no_array();
  const CaseArray shift = parameters > 1 ? sample(last, 7) : no_array();
  return {.name = name,
          .inputs = {x, scale, shift},
          .attributes = with(how),
          .expected = {direct(x, how, scale, shift)},
          .gradient = shape.size() > 0,
          .tolerance = 8};
}

const CaseArray kNone = no_array();
const RegisterCases kStandardize(
    "standardize",
    {rows("rows", {4, 10}, {}, 0), rows("two axes", {2, 3, 7}, {.axes = 2}, 2),
     rows("not centered", {3, 21}, {.centered = false, .epsilon = 1e-6}, 1), rows("many", {300, 130}, {}, 2),
     rows("one row", {6}, {}, 2), rows("no rows", {0, 3}, {}, 2), rows("empty rows", {3, 0}, {}, 2)},
    {{"axes is 3", {sample({2, 3}, 1), kNone, kNone}, with(StandardizeAttributes{3})},
     {"x is int32", {typed(DType::kInt32, {1}, {1}), kNone, kNone}},
     {"scale is", {sample({2, 3}, 1), sample({2}, 1), kNone}},
     {"shift is", {sample({2, 3}, 1), sample({3}, 1), sample({2}, 1)}},
     {"shift without scale", {sample({2, 3}, 1), kNone, sample({3}, 1)}}});

TEST(Normalize, RefusesParametersThatDoNotFit) {
  const NDArray x = NDArray::zeros({2, 4, 3}), four = NDArray::zeros({4}), three = NDArray::zeros({3});
  EXPECT_THROW(layer_norm(x, four, NDArray()), InvalidArgument);
  EXPECT_THROW(layer_norm(x, three, four), InvalidArgument);
  EXPECT_THROW(group_norm(x, 3, four, four), InvalidArgument);
  EXPECT_THROW(group_norm(x, 2, three, four), InvalidArgument);
  EXPECT_THROW(instance_norm(three, NDArray(), NDArray()), InvalidArgument);
  EXPECT_NO_THROW(group_norm(x, 2, four, NDArray()).wait());
}

TEST(Normalize, LongRowsKeepTheirDigits) {
  constexpr std::int64_t kMany = 1 << 20;
  std::vector<float> values(kMany, 1003);
  for (std::size_t i = 0; i < values.size(); i += 2) values[i] = 999;
  const std::vector<float> y = layer_norm(NDArray::from(values, {kMany}), NDArray(), NDArray()).to_vector<float>();
  EXPECT_NEAR(y[0], -1, 1e-3);
  EXPECT_NEAR(y[1], 1, 1e-3);
}

TEST(Normalize, TheGradientRefusesWhatDoesNotFit) {
  const auto refused = [](const NDArray& x, const NDArray& of_rows, int axes) {
    const StandardizeAttributes how{axes};
    EXPECT_THROW(invoke(standardize_backward_operator(), {x, x, of_rows, of_rows, NDArray()}, how), InvalidArgument)
        << x.describe() << ", " << of_rows.describe() << ", axes " << axes;
    EXPECT_THROW(invoke(standardize_backward_parameters_operator(), {x, x, of_rows, of_rows}, with(how)),
                 InvalidArgument)
        << x.describe() << ", " << of_rows.describe() << ", axes " << axes;
  };
  refused(NDArray::zeros({2, 3}), NDArray::zeros({2, 3}), 0);
  refused(NDArray::zeros({2}, DType::kInt32), NDArray::zeros({}), 1);
  refused(NDArray::zeros({2, 3}), NDArray::zeros({2}, DType::kFloat64), 1);
}

}  // namespace
}  // namespace paceline::test
