#include "shared/fast_math.h"
#include "unary/functors.h"

#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Cases of a function of one variable: an ordinary array inside its domain, one element, nothing, NaN, a long array
// that takes the vector loop and its rest.
struct UnaryCases {
  UnaryCases(const std::string& name, double (*f)(double), double low = -2, double high = 2) {
    const auto like = [&](const std::string& what, const CaseArray& x, bool gradient = true) {
      return OperatorCase{
          .name = what, .inputs = {x}, .expected = {mapped(x, f)}, .gradient = gradient, .tolerance = 2};
    };
    RegisterCases(name,
                  {like("3-d", sample({2, 3, 4}, 1, low, high)),
                   like("one element", sample({1}, 2, low, high)),
                   like("scalar", sample({}, 3, low, high)),
                   like("empty", sample({3, 0}, 4), false),
                   like("long", sample({70001}, 5, low, high)),
                   {.name = "NaN",
                    .inputs = {array({2}, {kNaN, 1})},
                    .expected = {array({2}, {f(kNaN), f(1)})},
                    .gradient = false}},
                  {{"x is bool", {typed(DType::kBool, {1}, {1})}},
                   {"got 2 inputs, expected 1", {array({1}, {1}), array({1}, {1})}},
                   {"x is none", {no_array()}}});
  }
};

const UnaryCases kRelu("relu", [](double x) { return x < 0 ? 0.0 : x; });
const UnaryCases kSigmoid(
    "sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -8, 8);
const UnaryCases kTanh(
    "tanh", [](double x) { return std::tanh(x); }, -4, 4);
const UnaryCases kGelu("gelu", [](double x) { return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0))); });
const UnaryCases kSoftplus(
    "softplus", [](double x) { return std::log1p(std::exp(x)); }, -4, 4);
const UnaryCases kExp("exp", [](double x) { return std::exp(x); });
const UnaryCases kLog(
    "log", [](double x) { return std::log(x); }, 0.5, 4);
const UnaryCases kSqrt(
    "sqrt", [](double x) { return std::sqrt(x); }, 0.5, 4);
const UnaryCases kRsqrt(
    "rsqrt", [](double x) { return 1 / std::sqrt(x); }, 0.5, 4);
const UnaryCases kSquare("square", [](double x) { return x * x; });
const UnaryCases kReciprocal(
    "reciprocal", [](double x) { return 1 / x; }, 0.5, 4);
const UnaryCases kAbs("abs", [](double x) { return std::fabs(x); });
const UnaryCases kSign("sign", [](double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : 0.0; });
const UnaryCases kNegative("negative", [](double x) { return -x; });
const UnaryCases kSin("sin", [](double x) { return std::sin(x); });
const UnaryCases kCos("cos", [](double x) { return std::cos(x); });
const UnaryCases kGeluTanh("gelu_tanh", [](double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
});
const UnaryCases kSilu("silu", [](double x) { return x / (1 + std::exp(-x)); });
const UnaryCases kSoftsign("softsign", [](double x) { return x / (1 + std::fabs(x)); });
const UnaryCases kSelu("selu",
                       [](double x) { return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * std::expm1(x)); });
const UnaryCases kExpm1("expm1", [](double x) { return std::expm1(x); });
const UnaryCases kLog1p(
    "log1p", [](double x) { return std::log1p(x); }, -0.5, 4);
const UnaryCases kErf("erf", [](double x) { return std::erf(x); });
const UnaryCases kFloor("floor", [](double x) { return std::floor(x); });
const UnaryCases kCeil("ceil", [](double x) { return std::ceil(x); });
const UnaryCases kRound("round", [](double x) { return std::nearbyint(x); });
const UnaryCases kLeakyRelu("leaky_relu", [](double x) { return x > 0 ? x : 0.01 * x; });
const UnaryCases kElu("elu", [](double x) { return x > 0 ? x : std::expm1(x); });
const UnaryCases kClip("clip", [](double x) { return x; });

const RegisterCases kSlope("leaky_relu", {{.name = "slope",
                                           .inputs = {array({3}, {-2, 0, 3})},
                                           .attributes = with(LeakyReluAttributes{0.5}),
                                           .expected = {array({3}, {-1, 0, 3})},
                                           .gradient = false}});
const RegisterCases kAlpha("elu", {{.name = "alpha",
                                    .inputs = {array({2}, {-1, 3})},
                                    .attributes = with(EluAttributes{2}),
                                    .expected = {array({2}, {2 * std::expm1(-1.0), 3})}}});
const RegisterCases kRange("clip", {{.name = "range",
                                     .inputs = {array({4}, {-2, -0.25, 0.5, 3})},
                                     .attributes = with(ClipAttributes{-1, 2}),
                                     .expected = {array({4}, {-1, -0.25, 0.5, 2})}}});
const RegisterCases kHalves("round", {{.name = "halves to even",
                                       .inputs = {array({6}, {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5})},
                                       .expected = {array({6}, {-2, -2, 0, 0, 2, 2})},
                                       .gradient = false}});

const RegisterCases kIntegers("abs", {{.name = "int32",
                                       .inputs = {typed(DType::kInt32, {3}, {-3, 0, 7})},
                                       .expected = {typed(DType::kInt32, {3}, {3, 0, 7})},
                                       .gradient = false}});
const RegisterCases kTails("softplus", {{.name = "far out",
                                         .inputs = {array({4}, {-800, 800, -kInfinity, kInfinity})},
                                         .expected = {array({4}, {0, 800, 0, kInfinity})},
                                         .gradient = false}});
const RegisterCases kLimits("tanh", {{.name = "limits",
                                      .inputs = {array({4}, {-kInfinity, kInfinity, -0.0, 30})},
                                      .expected = {array({4}, {-1, 1, 0, 1})},
                                      .gradient = false}});

template <class F, class G>
double worst_error(const F& fast, const G& exact, float low, float high) {
  double worst = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 9973) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    const double truth = exact(static_cast<double>(x));
    const float rounded = std::fabs(static_cast<float>(truth));
    const double unit = static_cast<double>(std::nextafter(rounded, std::numeric_limits<float>::infinity())) - rounded;
    worst = std::max(worst, std::fabs(static_cast<double>(fast(x)) - truth) / unit);
  }
  return worst;
}

TEST(FastMath, IsWithinTheUnitsItSays) {
  EXPECT_LT(worst_error([](float x) { return fast_exp(x); }, [](double x) { return std::exp(x); }, -103.0f, 88.72f), 2);
  EXPECT_LT(worst_error([](float x) { return fast_tanh(x); }, [](double x) { return std::tanh(x); }, -50.0f, 50.0f), 2);
  EXPECT_LT(worst_error([](float x) { return fast_erfc(x); }, [](double x) { return std::erfc(x); }, -10.0f, 12.0f),
            12);
}

TEST(FastMath, SigmoidIsWithinFourUnits) {
  EXPECT_LT(worst_error([](float x) { return functors::Sigmoid()(x); }, [](double x) { return 1 / (1 + std::exp(-x)); },
                        -87.0f, 50.0f),
            4);
}

TEST(FastMath, KeepsSpecialValues) {
  constexpr float kHuge = std::numeric_limits<float>::infinity();
  EXPECT_EQ(fast_exp(kHuge), kHuge);
  EXPECT_EQ(fast_exp(-kHuge), 0.0f);
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(fast_tanh(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(fast_erfc(kHuge), 0.0f);
  EXPECT_EQ(fast_erfc(-kHuge), 2.0f);
  EXPECT_TRUE(std::isnan(fast_erfc(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Unary, FunctionsWithoutIntegerValuesTakeIntegersAsFloat32) {
  const NDArray x = NDArray::from<std::int64_t>({0, 4}, {2}), seen = NDArray::from<bool>({true}, {1});
  EXPECT_EQ(sqrt(x).dtype(), DType::kFloat32);
  EXPECT_EQ(sqrt(x).to_vector<float>(), (std::vector<float>{0, 2}));
  EXPECT_EQ(reciprocal(seen).to_vector<float>(), (std::vector<float>{1}));
  EXPECT_THROW(sqrt_(x), InvalidArgument);
  EXPECT_THROW(gelu(x), InvalidArgument);
}

TEST(Unary, KeepsTheOrderOfAxesInMemory) {
  const NDArray channels_last = NDArray::from<float>({-1, 2, -3, 4, -5, 6}, {1, 3, 2}).permute({0, 2, 1});
  const NDArray y = relu(channels_last);
  EXPECT_EQ(y.shape(), channels_last.shape());
  EXPECT_EQ(y.strides(), channels_last.strides());
  EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{0, 0, 0, 2, 4, 6}));
}

}  // namespace
}  // namespace paceline::test
