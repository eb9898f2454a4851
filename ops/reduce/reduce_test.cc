#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

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
  ReduceCases(const std::string& name, Fold fold, bool empties) {
    std::vector<OperatorCase> cases;
    const auto add = [&](const std::string& what, const CaseArray& x, std::vector<int> axes, bool keep,
                         bool gradient = true) {
      cases.push_back({.name = what,
                       .inputs = {x},
                       .attributes = with(ReduceAttributes{axes, keep}),
                       .expected = {reduced(x, axes, keep, fold)},
                       .gradient = gradient,
                       .tolerance = 10});
    };
    add("all", sample({2, 3, 4}, 1), {}, false);
    add("all kept", sample({2, 3}, 2), {}, true);
    add("first", sample({5, 3}, 3), {0}, false);
    add("last", sample({5, 37}, 4), {-1}, true);
    add("middle", sample({2, 5, 3}, 5), {1}, false);
    add("channels", sample({3, 2, 4, 5}, 6), {0, 2, 3}, false);
    add("outer and inner", sample({3, 4, 1, 5}, 7), {3, 0}, true);
    add("wide", sample({7, 600}, 8), {0}, false);
    add("one element", sample({1}, 9), {}, false);
    add("scalar", sample({}, 10), {}, false);
    add("no results", sample({0, 3}, 11), {1}, false, false);
    add("long", sample({70001}, 12), {}, false);
    if (empties) add("of nothing", sample({2, 0}, 13), {1}, false, false);
    cases.push_back({.name = "NaN",
                     .inputs = {array({2, 3}, {1, kNaN, 2, 3, 4, 5})},
                     .attributes = with(ReduceAttributes{{1}, false}),
                     .expected = {array({2}, {kNaN, fold({3, 4, 5})})},
                     .gradient = false});
    RegisterCases(name, cases,
                  {{"axis 2 ", {sample({2, 3}, 1)}, with(ReduceAttributes{{2}})},
                   {"axis -2 occurs twice", {sample({2, 3}, 1)}, with(ReduceAttributes{{0, -2}})},
                   {"x is bool", {typed(DType::kBool, {1}, {1})}}});
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

const RegisterCases kIntegers("sum", {{.name = "int8",
                                       .inputs = {typed(DType::kInt8, {3}, {100, 27, -100})},
                                       .expected = {typed(DType::kInt8, {}, {27})},
                                       .gradient = false}});
const RegisterCases kNoIntegers("mean", {}, {{"x is int32", {typed(DType::kInt32, {1}, {1})}}});
const RegisterCases kNothing("max", {}, {{"has no elements", {array({0}, {})}}});

TEST(Reduce, SumOfHalvesIsAccumulatedInFloat) {
  const NDArray ones = NDArray::full({4096}, 1, DType::kFloat16);
  EXPECT_EQ(sum(ones).item<float>(), 4096);  // float16 alone stops at 2048
}

TEST(Reduce, SumToUndoesABroadcast) {
  const NDArray x = NDArray::full({2, 3, 4}, 1);
  EXPECT_EQ(sum_to(x, {3, 1}).to_vector<float>(), (std::vector<float>{8, 8, 8}));
  EXPECT_EQ(sum_to(x, {}).item<float>(), 24);
  EXPECT_EQ(sum_to(x, {2, 3, 4}).shape(), x.shape());
}

}  // namespace
}  // namespace paceline::test
