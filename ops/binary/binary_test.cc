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
  // `smooth`: finite differences are its gradient, wherever the samples lie.
  BinaryCases(const std::string& name, double (*f)(double, double), bool comparison = false, double low = -2,
              bool smooth = true) {
    std::vector<OperatorCase> cases;
    const auto add = [&](const std::string& what, const CaseArray& a, const CaseArray& b, bool gradient = true) {
      CaseArray expected = broadcast_map(a, b, f);
      if (comparison) expected.dtype = DType::kBool;
      cases.push_back(
          {.name = what, .inputs = {a, b}, .expected = {expected}, .gradient = gradient && smooth, .tolerance = 4});
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
                         .gradient = a.shape.size() > 0 && smooth,
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

double python_remainder(double a, double b) { return a - b * std::floor(a / b); }
const BinaryCases kLogicalAnd(
    "logical_and", [](double a, double b) -> double { return a != 0 && b != 0; }, true);
const BinaryCases kLogicalOr(
    "logical_or", [](double a, double b) -> double { return a != 0 || b != 0; }, true);
const BinaryCases kLogicalXor(
    "logical_xor", [](double a, double b) -> double { return (a != 0) != (b != 0); }, true);
const BinaryCases kRemainder("remainder", python_remainder, false, -2, false);
const BinaryCases kFloorDivide(
    "floor_divide", [](double a, double b) { return std::floor(a / b); }, false, -2, false);
// Away from the jumps.
const OperatorCase kBetweenJumps{.name = "between jumps",
                                 .inputs = {array({4}, {1.25, -3.75, 3.5, -0.5}), array({4}, {0.75, 1, -1, -2})}};
const RegisterCases kSmoothRemainder("remainder", {kBetweenJumps}), kSmoothFloor("floor_divide", {kBetweenJumps});
OperatorCase between_jumps(bool first) {
  return {.name = first ? "between jumps, number first" : "between jumps",
          .inputs = {array({4}, {1.25, -3.75, 3.5, -0.625})},
          .attributes = with(ScalarAttributes{1.5, first})};
}
const RegisterCases kSmoothRemainderOfNumber("remainder_scalar", {between_jumps(false), between_jumps(true)}),
    kSmoothFloorOfNumber("floor_divide_scalar", {between_jumps(false), between_jumps(true)});

// Python's: the remainder has the sign of the divisor. Of integers by 0: 0.
const std::vector<double> kDividends{7, -7, 7, -7, 6, -6, 0, 5, -128, 127},
    kDivisors{3, 3, -3, -3, -3, 3, -2, 0, -1, -1};
OperatorCase of_integers(DType dtype, std::vector<double> expected) {
  return {.name = name_of(dtype),
          .inputs = {typed(dtype, {10}, kDividends), typed(dtype, {10}, kDivisors)},
          .expected = {typed(dtype, {10}, std::move(expected))},
          .gradient = false};
}
const RegisterCases kRemainders("remainder", {of_integers(DType::kInt8, {1, 2, -2, -1, 0, 0, 0, 0, 0, 0}),
                                              of_integers(DType::kInt64, {1, 2, -2, -1, 0, 0, 0, 0, 0, 0})});
const RegisterCases kFloors("floor_divide", {of_integers(DType::kInt8, {2, -3, -3, 2, -2, -2, 0, 0, -128, -127}),
                                             of_integers(DType::kInt64, {2, -3, -3, 2, -2, -2, 0, 0, 128, -127})});
// 1 / 0.1 is 10 when rounded, and 9 when floored.
const RegisterCases kFloorOfExactQuotient("floor_divide", {{.name = "exact",
                                                            .inputs = {array({2}, {1, 6}), array({2}, {0.1, -0.0})},
                                                            .expected = {array({2}, {9, -1 / 0.0})},
                                                            .gradient = false}});
// A half more is no number of their type.
OperatorCase of_odd_numbers(DType dtype, double large) {
  return {.name = str("odd ", name_of(dtype)),
          .inputs = {typed(dtype, {2}, {large, -large}), typed(dtype, {2}, {1, 1})},
          .expected = {typed(dtype, {2}, {large, -large})},
          .gradient = false};
}
const RegisterCases kFloorOfOddNumbers("floor_divide", {of_odd_numbers(DType::kFloat32, 8388609),
                                                        of_odd_numbers(DType::kFloat64, 4503599627370497)});

OperatorCase of_bits(DType dtype, std::vector<double> expected) {
  const bool is_bool = dtype == DType::kBool;
  return {.name = name_of(dtype),
          .inputs = {typed(dtype, {4}, is_bool ? std::vector<double>{0, 0, 1, 1} : std::vector<double>{12, 5, 0, 127}),
                     typed(dtype, {4}, is_bool ? std::vector<double>{0, 1, 0, 1} : std::vector<double>{10, 3, 1, 1})},
          .expected = {typed(dtype, {4}, std::move(expected))},
          .gradient = false};
}
const RegisterCases kAnd("bitwise_and",
                         {of_bits(DType::kUint8, {8, 1, 0, 1}), of_bits(DType::kInt32, {8, 1, 0, 1}),
                          of_bits(DType::kBool, {0, 0, 0, 1})},
                         {{"expected integers or bool", {array({1}, {1}), array({1}, {1})}}});
const RegisterCases kOr("bitwise_or", {of_bits(DType::kInt8, {14, 7, 1, 127}), of_bits(DType::kBool, {0, 1, 1, 1})},
                        {{"expected integers or bool", {array({1}, {1}), array({1}, {1})}}});
const RegisterCases kXor("bitwise_xor", {of_bits(DType::kInt64, {6, 6, 1, 126}), of_bits(DType::kBool, {0, 1, 1, 0})},
                         {{"expected integers or bool", {array({1}, {1}), array({1}, {1})}}});
OperatorCase bits_with_number(std::vector<double> expected) {
  return {.name = "number",
          .inputs = {typed(DType::kInt32, {3}, {12, -1, 7})},
          .attributes = with(ScalarAttributes{10, false}),
          .expected = {typed(DType::kInt32, {3}, std::move(expected))},
          .gradient = false};
}
const RegisterCases kAndNumber("bitwise_and_scalar", {bits_with_number({8, 10, 2})});
const RegisterCases kOrNumber("bitwise_or_scalar", {bits_with_number({14, -1, 15})});
const RegisterCases kXorNumber("bitwise_xor_scalar", {bits_with_number({6, -11, 13})});

TEST(Binary, NotAndWhatIsFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const NDArray x = NDArray::from<float>({0, 1, static_cast<float>(kNaN), -infinity}, {4});
  EXPECT_EQ(logical_not(x).to_vector<bool>(), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(isnan(x).to_vector<bool>(), (std::vector<bool>{false, false, true, false}));
  EXPECT_EQ(isinf(x).to_vector<bool>(), (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(isfinite(x).to_vector<bool>(), (std::vector<bool>{true, true, false, false}));
  const NDArray whole = NDArray::from<std::int32_t>({0, -3}, {2});
  EXPECT_EQ(isinf(whole).to_vector<bool>(), (std::vector<bool>{false, false}));
  EXPECT_EQ(isfinite(whole).to_vector<bool>(), (std::vector<bool>{true, true}));
  EXPECT_EQ(bitwise_not(whole).to_vector<std::int32_t>(), (std::vector<std::int32_t>{-1, 2}));
  EXPECT_EQ(bitwise_not(NDArray::from<std::uint8_t>({1}, {1})).to_vector<std::uint8_t>()[0], 254);
  EXPECT_EQ(bitwise_not(NDArray::from<bool>({true}, {1})).to_vector<bool>()[0], false);
  EXPECT_EQ((((whole % 2) & (whole | whole)) ^ whole).to_vector<std::int32_t>(), (std::vector<std::int32_t>{0, -4}));
  EXPECT_THROW(bitwise_not(x), InvalidArgument);
}

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
