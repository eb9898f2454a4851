#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// f over a and b broadcast to each other by counting, the obvious way.
CaseArray broadcast_map(const CaseArray& a, const CaseArray& b, double (*f)(double, double)) {
  CaseArray result{broadcast(a.shape, b.shape), {}};
  const auto value = [&](const CaseArray& x, std::int64_t position) {
    std::int64_t index = 0, stride = 1;
    for (int i = 1; i <= result.shape.ndim(); ++i) {
      const std::int64_t size = result.shape[result.shape.ndim() - i];
      if (i <= x.shape.ndim()) {
        const std::int64_t own = x.shape[x.shape.ndim() - i];
        index += own == 1 ? 0 : position % size * stride;
        stride *= own;
      }
      position /= size;
    }
    return x.values[static_cast<std::size_t>(index)];
  };
  for (std::int64_t i = 0; i < result.shape.size(); ++i) result.values.push_back(f(value(a, i), value(b, i)));
  return result;
}

struct BinaryCases {
  BinaryCases(const std::string& name, double (*f)(double, double), bool comparison = false, double low = -2) {
    std::vector<OperatorCase> cases;
    const auto add = [&](const std::string& what, const CaseArray& a, const CaseArray& b, bool gradient = true) {
      CaseArray expected = broadcast_map(a, b, f);
      if (comparison) expected.dtype = DType::kBool;
      cases.push_back({.name = what, .inputs = {a, b}, .expected = {expected}, .gradient = gradient, .tolerance = 4});
    };
    add("same shape", sample({2, 3}, 1, low), sample({2, 3}, 2, low));
    add("row", sample({2, 3}, 3, low), sample({3}, 4, low));
    add("column", sample({2, 1}, 5, low), sample({2, 3}, 6, low));
    add("outer", sample({2, 1, 3}, 7, low), sample({4, 1}, 8, low));
    add("scalar", sample({}, 9, low), sample({2, 2}, 10, low));
    add("one element", sample({1}, 11, low), sample({1}, 12, low));
    add("empty", sample({0, 3}, 13, low), sample({1, 3}, 14, low), false);
    add("long", sample({40001}, 15, low), sample({40001}, 16, low));
    if (!comparison)
      cases.push_back({.name = "NaN",
                       .inputs = {array({3}, {kNaN, 1, kNaN}), array({3}, {1, kNaN, kNaN})},
                       .expected = {array({3}, {kNaN, name == "power" ? 1 : kNaN, kNaN})},
                       .gradient = false});
    if (name == "power") cases.back().expected[0].values[1] = std::pow(1, kNaN);
    RegisterCases(name, cases,
                  {{"a is float64 and b is int32", {array({1}, {1}), typed(DType::kInt32, {1}, {1})}},
                   {"got 1 inputs, expected 2", {array({1}, {1})}}});
    std::vector<OperatorCase> numbers;
    const auto number = [&](const std::string& what, const CaseArray& a, double scalar, bool first) {
      CaseArray expected = a;
      for (double& value : expected.values) value = first ? f(scalar, value) : f(value, scalar);
      if (comparison) expected.dtype = DType::kBool;
      numbers.push_back({.name = what,
                         .inputs = {a},
                         .attributes = with(ScalarAttributes{scalar, first}),
                         .expected = {expected},
                         .gradient = a.shape.size() > 0,
                         .tolerance = 4});
    };
    number("number last", sample({2, 3}, 21, low), 0.75, false);
    number("number first", sample({2, 3}, 22, low), 1.25, true);
    number("empty", sample({0}, 23, low), 2, false);
    RegisterCases(name + "_scalar", numbers, {{"a is none", {no_array()}}});
  }
};

const BinaryCases kAdd("add", [](double a, double b) { return a + b; });
const BinaryCases kSubtract("subtract", [](double a, double b) { return a - b; });
const BinaryCases kMultiply("multiply", [](double a, double b) { return a * b; });
const BinaryCases kDivide(
    "divide", [](double a, double b) { return a / b; }, false, 0.5);
const BinaryCases kPower(
    "power", [](double a, double b) { return std::pow(a, b); }, false, 0.5);
const BinaryCases kMaximum("maximum", [](double a, double b) { return std::max(a, b); });
const BinaryCases kMinimum("minimum", [](double a, double b) { return std::min(a, b); });
const BinaryCases kEqual(
    "equal", [](double a, double b) -> double { return a == b; }, true);
const BinaryCases kNotEqual(
    "not_equal", [](double a, double b) -> double { return a != b; }, true);
const BinaryCases kGreater(
    "greater", [](double a, double b) -> double { return a > b; }, true);
const BinaryCases kGreaterEqual(
    "greater_equal", [](double a, double b) -> double { return a >= b; }, true);
const BinaryCases kLess(
    "less", [](double a, double b) -> double { return a < b; }, true);
const BinaryCases kLessEqual(
    "less_equal", [](double a, double b) -> double { return a <= b; }, true);

const RegisterCases kIntegers("multiply",
                              {{.name = "int64",
                                .inputs = {typed(DType::kInt64, {2}, {3, -4}), typed(DType::kInt64, {2}, {5, 6})},
                                .expected = {typed(DType::kInt64, {2}, {15, -24})},
                                .gradient = false}});
const RegisterCases kBools("equal", {{.name = "bool",
                                      .inputs = {typed(DType::kBool, {2}, {0, 1}), typed(DType::kBool, {2}, {1, 1})},
                                      .expected = {typed(DType::kBool, {2}, {0, 1})}}});
const RegisterCases kRefused("add", {},
                             {{"a is bool", {typed(DType::kBool, {1}, {1}), typed(DType::kBool, {1}, {1})}}});
const RegisterCases kNoIntegers("divide", {},
                                {{"a is int32", {typed(DType::kInt32, {1}, {1}), typed(DType::kInt32, {1}, {1})}}});

TEST(Binary, OperatorsOfTheLanguage) {
  const NDArray a = NDArray::from<float>({1, 2}, {2});
  const NDArray b = NDArray::from<float>({4, 8}, {2});
  EXPECT_EQ((a + b).to_vector<float>(), (std::vector<float>{5, 10}));
  EXPECT_EQ((2 * a - b / 4).to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ((1 - a).to_vector<float>(), (std::vector<float>{0, -1}));
  EXPECT_EQ((8 / b + 1 + a).to_vector<float>(), (std::vector<float>{4, 4}));
  EXPECT_EQ((-a * b).to_vector<float>(), (std::vector<float>{-4, -16}));
}

TEST(Binary, ShapesThatDoNotBroadcastAreNamed) {
  try {
    add(NDArray({2, 3}), NDArray({2, 4}));
    FAIL() << "was not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("(2, 4)"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace paceline::test
