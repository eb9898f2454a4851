#include <paceline/cores.h>
#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <cmath>

namespace paceline {
const OpDef& standardize_backward_operator();
const OpDef& standardize_backward_parameters_operator();
}  // namespace paceline

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
const RegisterCases kStandardize("standardize",
                                 {rows("rows", {4, 10}, {}, 0), rows("two axes", {2, 3, 7}, {.axes = 2}, 2),
                                  rows("not centered", {3, 21}, {.centered = false, .epsilon = 1e-6}, 1),
                                  rows("many", {300, 130}, {}, 2), rows("one row", {6}, {}, 2),
                                  rows("no rows", {0, 3}, {}, 2), rows("empty rows", {3, 0}, {}, 2)},
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

// Few columns are shared by rows among the team; the order of the sums is one for every team.
TEST(Normalize, GradientsOfNarrowParametersDoNotDependOnTheTeam) {
  for (const Shape& shape : {Shape{20000, 24}, Shape{5003, 130}, Shape{1025, 1}, Shape{700, 64}}) {
    std::vector<std::vector<float>> first;
    for (const int team : {1, 2, 3, 16}) {
      set_team_size(team);
      const std::unique_ptr<Engine> serial = make_serial_engine();
      const auto numbers = [&](const Shape& of, std::uint64_t seed) {
        const NDArray x(of, DType::kFloat32, Device(), *serial);
        kernels::fill_normal(x, 0.1, 1, seed);
        return x;
      };
      const NDArray rows = numbers({shape[0]}, 3);
      const NDArray g = numbers(shape, 1), x = numbers(shape, 2);
      const std::vector<NDArray> both = invoke(standardize_backward_parameters_operator(), {g, x, rows, rows});
      const std::vector<std::vector<float>> result{both[0].to_vector<float>(), both[1].to_vector<float>()};
      if (!first.empty()) {
        EXPECT_EQ(result, first) << team << " threads, " << shape;
        continue;
      }
      first = result;
      const std::vector<float> of_g = g.to_vector<float>(), of_x = x.to_vector<float>(), row = rows.to_vector<float>();
      for (std::int64_t k = 0; k < shape[1]; ++k) {
        double scale = 0, shift = 0;
        for (std::size_t i = 0; i < row.size(); ++i) {
          const std::size_t at = i * static_cast<std::size_t>(shape[1]) + static_cast<std::size_t>(k);
          scale += double{of_g[at]} * (double{of_x[at]} - row[i]) * row[i];
          shift += of_g[at];
        }
        EXPECT_NEAR(result[0][static_cast<std::size_t>(k)], scale, 1e-2) << shape;
        EXPECT_NEAR(result[1][static_cast<std::size_t>(k)], shift, 1e-2) << shape;
      }
    }
  }
  set_team_size(core_budget());
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
