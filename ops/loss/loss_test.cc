#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace paceline::test {
namespace {

struct LossCases {
  LossCases(const std::string& name, double (*f)(double, double), double low = -2, double high = 2) {
    const auto like = [&](const std::string& what, const Shape& shape, bool gradient = true) {
      const CaseArray p = sample(shape, 1), t = sample(shape, 2, low, high);
      CaseArray expected{shape, {}};
      for (std::size_t i = 0; i < p.values.size(); ++i) expected.values.push_back(f(p.values[i], t.values[i]));
      return OperatorCase{.name = what, .inputs = {p, t}, .expected = {expected}, .gradient = gradient, .tolerance = 2};
    };
    RegisterCases(name, {like("2-d", {3, 4}), like("scalar", {}), like("empty", {0, 2}, false)},
                  {{"expected one shape", {sample({2}, 1), sample({3}, 1)}},
                   {"expected one shape", {sample({2}, 1), typed(DType::kFloat32, {2}, {1, 1})}},
                   {"one floating type", {typed(DType::kInt32, {1}, {1}), typed(DType::kInt32, {1}, {1})}}});
  }
};

const LossCases kSquared("squared_loss", [](double p, double t) { return (p - t) * (p - t); });
const LossCases kAbsolute("absolute_loss", [](double p, double t) { return std::fabs(p - t); });
const LossCases kHinge("hinge_loss", [](double p, double t) { return std::fmax(0, 1 - p * t); });
const LossCases kHuber("huber_loss", [](double p, double t) {
  const double size = std::fabs(p - t);
  return size <= 1 ? size * size / 2 : size - 0.5;
});
const LossCases kBinary(
    "sigmoid_cross_entropy",
    [](double p, double t) { return t * std::log1p(std::exp(-p)) + (1 - t) * std::log1p(std::exp(p)); }, 0, 1);
const LossCases kKl(
    "kl_divergence", [](double p, double t) { return t * (std::log(t) - p); }, 0.25, 1);

TEST(Loss, Reduces) {
  const NDArray p = NDArray::from<float>({1, 4}, {2}), t = NDArray::from<float>({0, 1}, {2});
  EXPECT_EQ(squared_loss(p, t).item<float>(), 5);
  EXPECT_EQ(squared_loss(p, t, Reduction::kSum).item<float>(), 10);
  EXPECT_EQ(huber_loss(p, t, 2, Reduction::kNone).to_vector<float>(), (std::vector<float>{0.5, 4}));
  EXPECT_THROW(huber_loss(p, t, 0), InvalidArgument);
}

}  // namespace
}  // namespace paceline::test
