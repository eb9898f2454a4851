#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Fold = double (*)(const std::vector<double>&);

// The reduction by counting, the obvious way.
CaseArray reduced(const CaseArray& x, const std::vector<int>& axes, bool keep_dims, Fold fold) {
  const auto is_reduced = [&](int axis) {
    return axes.empty() ||
           std::any_of(axes.begin(), axes.end(), [&](int a) { return (a < 0 ? a + x.shape.ndim() : a) == axis; });
  };
  CaseArray result;
  std::int64_t count = 1;
  for (int i = 0; i < x.shape.ndim(); ++i) {
    if (!is_reduced(i)) count *= x.shape[i];
    if (!is_reduced(i) || keep_dims) result.shape.push_back(is_reduced(i) ? 1 : x.shape[i]);
  }
  std::vector<std::vector<double>> groups(static_cast<std::size_t>(count));
  for (std::int64_t position = 0; position < x.shape.size(); ++position) {
    std::int64_t rest = position, group = 0, stride = 1;
    for (int i = x.shape.ndim() - 1; i >= 0; --i) {
      if (!is_reduced(i)) {
        group += rest % x.shape[i] * stride;
        stride *= x.shape[i];
      }
      rest /= x.shape[i];
    }
    groups[static_cast<std::size_t>(group)].push_back(x.values[static_cast<std::size_t>(position)]);
  }
  for (const auto& group : groups) result.values.push_back(fold(group));
  return result;
}

struct ReduceCases {
  // `low` and `high` bound the elements; sums of many would not do for `small` results.
  ReduceCases(const std::string& name, Fold fold, bool empties, bool small = false, double low = -2, double high = 2) {
    std::vector<OperatorCase> cases;
    const auto add = [&](const std::string& what, const CaseArray& x, const std::vector<int>& axes, bool keep,
                         bool gradient = true) {
      cases.push_back({.name = what,
                       .inputs = {x},
                       .attributes = with(ReduceAttributes{axes, keep}),
                       .expected = {reduced(x, axes, keep, fold)},
                       .gradient = gradient,
                       .tolerance = 10});
    };
    add("all", sample({2, 3, 4}, 1, low, high), {}, false);
    add("all kept", sample({2, 3}, 2, low, high), {}, true);
    add("first", sample({5, 3}, 3, low, high), {0}, false);
    add("last", sample({5, 37}, 4, low, high), {-1}, true);
    add("middle", sample({2, 5, 3}, 5, low, high), {1}, false);
    add("channels", sample({3, 2, 4, 5}, 6, low, high), {0, 2, 3}, false);
    add("outer and inner", sample({3, 4, 1, 5}, 7, low, high), {3, 0}, true);
    add("wide", sample({7, 600}, 8, low, high), {0}, false);
    add("one element", sample({1}, 9, low, high), {}, false);
    add("scalar", sample({}, 10, low, high), {}, false);
    add("no results", sample({0, 3}, 11, low, high), {1}, false, false);
    if (!small) add("long", sample({70001}, 12, low, high), {}, false);
    if (empties) add("of nothing", sample({2, 0}, 13, low, high), {1}, false, false);
    cases.push_back({.name = "NaN",
                     .inputs = {array({2, 3}, {1, kNaN, 2, 3, 4, 5})},
                     .attributes = with(ReduceAttributes{{1}, false}),
                     .expected = {array({2}, {kNaN, fold({3, 4, 5})})},
                     .gradient = false});
    RegisterCases(name, cases,
                  {{"axis 2 ", {sample({2, 3}, 1)}, with(ReduceAttributes{{2}})},
                   {"axis -2 occurs twice", {sample({2, 3}, 1)}, with(ReduceAttributes{{0, -2}})}});
    if (name != "sum" && name != "prod") RegisterCases(name, {}, {{"x is bool", {typed(DType::kBool, {1}, {1})}}});
  }
};

const ReduceCases kSum(
    "sum", [](const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }, true);
const ReduceCases kMean(
    "mean",
    [](const std::vector<double>& v) {
      return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
    },
    true);
const ReduceCases kMax(
    "max", [](const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }, false);
const ReduceCases kMin(
    "min", [](const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }, false);

const ReduceCases kProd(
    "prod", [](const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 1.0, std::multiplies<>()); },
    true, true, 0.8, 1.25);
const ReduceCases kL1(
    "l1_norm",
    [](const std::vector<double>& v) {
      return std::accumulate(v.begin(), v.end(), 0.0, [](double sum, double x) { return sum + std::fabs(x); });
    },
    true, true);
const ReduceCases kL2(
    "l2_norm",
    [](const std::vector<double>& v) { return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)); },
    true);
const ReduceCases kMaxNorm(
    "max_norm",
    [](const std::vector<double>& v) {
      return std::accumulate(v.begin(), v.end(), 0.0, [](double top, double x) { return std::max(top, std::fabs(x)); });
    },
    false);
const ReduceCases kLogSumExp(
    "logsumexp",
    [](const std::vector<double>& v) {
      return std::log(std::accumulate(v.begin(), v.end(), 0.0, [](double sum, double x) { return sum + std::exp(x); }));
    },
    true);
const RegisterCases kLp("lp_norm",
                        {{.name = "order 3",
                          .inputs = {array({2, 2}, {3, -4, 1, 0.5})},
                          .attributes = with(NormAttributes{{{1}}, 3}),
                          .expected = {array({2}, {std::cbrt(91), std::cbrt(1.125)})}},
                         {.name = "zeros",
                          .inputs = {array({2}, {0, 0})},
                          .attributes = with(NormAttributes{{}, 3}),
                          .expected = {array({}, {0})},
                          .gradient = false}},
                        {{"x is int32", {typed(DType::kInt32, {1}, {1})}}});
const RegisterCases kZeros("prod", {{.name = "zeros",
                                     .inputs = {array({3, 3}, {1, 0, 2, 0, 3, 0, 4, 5, 6})},
                                     .attributes = with(ReduceAttributes{{1}}),
                                     .expected = {array({3}, {0, 0, 120})}}});
const RegisterCases kHuge("logsumexp", {{.name = "huge",
                                         .inputs = {array({2, 2}, {1000, 1000, -1000, -1000})},
                                         .attributes = with(ReduceAttributes{{1}}),
                                         .expected = {array({2}, {1000 + std::log(2), -1000 + std::log(2)})},
                                         .gradient = false}});

// Sums and products of integers and of bool, in int64: those below leave the elements' type.
OperatorCase in_int64(const char* name, DType dtype, std::vector<double> values, double expected) {
  return {.name = name,
          .inputs = {typed(dtype, {3}, std::move(values))},
          .expected = {typed(DType::kInt64, {}, {expected})},
          .gradient = false};
}
const RegisterCases kIntegers("sum", {in_int64("int8", DType::kInt8, {100, 100, -7}, 193),
                                      in_int64("uint8", DType::kUint8, {200, 200, 7}, 407),
                                      in_int64("int32", DType::kInt32, {2e9, 2e9, 2e9}, 6e9),
                                      in_int64("int64", DType::kInt64, {0x1p40, 1, 2}, 0x1p40 + 3),
                                      in_int64("bool", DType::kBool, {1, 0, 1}, 2)});
const RegisterCases kIntegerProducts("prod", {in_int64("uint8", DType::kUint8, {20, 30, 40}, 24000),
                                              in_int64("bool", DType::kBool, {1, 1, 1}, 1)});
const RegisterCases kIntegerExtremes("max", {{.name = "int8",
                                              .inputs = {typed(DType::kInt8, {3}, {100, 27, -100})},
                                              .expected = {typed(DType::kInt8, {}, {100})},
                                              .gradient = false}});
// So many that a device folds them in parts.
const OperatorCase kMany{
    .name = "many", .inputs = {sample({3, 9001}, 1)}, .attributes = with(ReduceAttributes{{1}}), .gradient = false};
const RegisterCases kManySum("sum", {kMany}), kManyMean("mean", {kMany}), kManyMax("max", {kMany});
const RegisterCases kWraps("prod", {{.name = "integers wrap",
                                     .inputs = {typed(DType::kInt64, {2}, {0x1p32, 0x1p31})},
                                     .expected = {typed(DType::kInt64, {}, {-0x1p63})},
                                     .gradient = false}});
const RegisterCases kProdBackward(
    "prod_backward", {},
    {{"gradient is float64 (2,)", {sample({2}, 1), sample({2, 3}, 1)}, with(ReduceAttributes{{0}})}});
const RegisterCases kNoIntegers("mean", {}, {{"x is int32", {typed(DType::kInt32, {1}, {1})}}});
const RegisterCases kNothing("max", {}, {{"has no elements", {array({0}, {})}}});

TEST(Reduce, SumOfHalvesIsAccumulatedInFloat) {
  const NDArray ones = NDArray::full({4096}, 1, DType::kFloat16);
  EXPECT_EQ(sum(ones).item<float>(), 4096);  // float16 alone stops at 2048
}

TEST(Reduce, LongSumsKeepTheirDigits) {
  constexpr std::int64_t kMany = 1000000;  // added one by one in float32, a tenth makes 100958
  const auto check = [](const Shape& shape, std::vector<int> axes) {
    for (const float total : sum(NDArray::full(shape, 0.1), std::move(axes)).to_vector<float>())
      EXPECT_NEAR(total, kMany / 10, 1) << shape;
  };
  check({kMany, 2}, {0});
  check({2, kMany}, {1});
  check({kMany / 2, 3, 2}, {0, 2});
  check({kMany}, {});
}

TEST(Reduce, TheGradientOfAMeanOfManyHalvesIsExact) {
  OpCall call;
  call.op = &find_operator("mean");
  call.input_specs = {{{100000}, DType::kFloat16}};
  call.attribute_data = with(ReduceAttributes{});
  const NDArray gradient = NDArray::full({}, 1024, DType::kFloat16);
  const Gradient result = call.op->gradient_rule()(call, {gradient})[0];
  EXPECT_EQ(result.dense.at(0).item<float>(), static_cast<float>(float16(0.01024f)));
}

TEST(Reduce, AnArrayWithoutAxesHasAnAxis) {
  const NDArray x = NDArray::full({}, -2, DType::kFloat64);
  EXPECT_EQ(sum(x, {0}).shape(), Shape{});
  EXPECT_EQ(sum(x, {-1}, true).item<double>(), -2);
  EXPECT_EQ(norm(x, 2, {-1}).item<double>(), 2);
  EXPECT_THROW(sum(x, {1}), InvalidArgument);
}

TEST(Reduce, AnyAndAllOfEveryType) {
  const NDArray x = NDArray::from<float>({0, 0, 0, static_cast<float>(kNaN), 1, 2}, {3, 2});
  EXPECT_EQ(any(x, {1}).to_vector<bool>(), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(all(x, {1}).to_vector<bool>(), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(any(x, {0}, true).shape(), (Shape{1, 2}));
  const NDArray none = NDArray::zeros({0}, DType::kBool);
  EXPECT_FALSE(any(none).to_vector<bool>()[0]);
  EXPECT_TRUE(all(none).to_vector<bool>()[0]);
  EXPECT_TRUE(all(NDArray::full({300}, 1, DType::kUint8)).to_vector<bool>()[0]);
}

TEST(Reduce, VarianceAndDeviation) {
  const NDArray x = NDArray::from<double>({1, 2, 4, 5, 5, 5}, {2, 3});
  const auto near = [](const NDArray& actual, const std::vector<double>& expected) {
    const auto values = actual.to_vector<double>();
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-12) << i;
  };
  near(var(x, {1}), {7.0 / 3, 0});
  near(var(x, {1}, 0, true), {14.0 / 9, 0});
  near(var(x, {}, 0), {23.0 / 9});
  near(std(x, {1}), {std::sqrt(7.0 / 3), 0});
  // Far from 0, where a mean of squares would have lost every digit.
  near(var(x + 1e9, {1}), {7.0 / 3, 0});
  EXPECT_EQ(var(NDArray::full({100000}, 100, DType::kFloat16)).item<float>(), 0);
  EXPECT_TRUE(std::isnan(var(NDArray::full({1}, 3)).item<float>()));
  // Variances that float16 does not hold.
  EXPECT_NEAR(std(NDArray::from<float>({0, 1000}, {2}).cast(DType::kFloat16)).item<float>(), 707.1, 0.5);
  EXPECT_NEAR(std(NDArray::from<float>({0, 2e-4f}, {2}).cast(DType::kFloat16)).item<float>(), 1.414e-4, 2e-6);
  EXPECT_THROW(var(NDArray::zeros({2}, DType::kInt32)), InvalidArgument);
  EXPECT_THROW(var(x, {}, -1), InvalidArgument);
}

TEST(Reduce, SumToUndoesABroadcast) {
  const NDArray x = NDArray::full({2, 3, 4}, 1);
  EXPECT_EQ(sum_to(x, {3, 1}).to_vector<float>(), (std::vector<float>{8, 8, 8}));
  EXPECT_EQ(sum_to(x, {}).item<float>(), 24);
  EXPECT_EQ(sum_to(x, {2, 3, 4}).shape(), x.shape());
}

}  // namespace
}  // namespace paceline::test
