// Gradients and values at the ends of functions, where a product alone gives 0 * infinity.
#include <paceline/autograd.h>
#include <paceline/ops.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace paceline::test {
namespace {

// d sum(f(x)) / dx
std::vector<float> slopes(const NDArray& x, const std::function<NDArray(const NDArray&)>& f) {
  const NDArray gradient = NDArray::zeros(x.shape(), x.dtype());
  Tape tape;
  tape.watch(x, gradient);
  tape.backward(sum(f(x)));
  return gradient.to_vector<float>();
}

TEST(GradientLimits, AFlatPartEndsAnInfiniteGradient) {
  const NDArray x = NDArray::from<float>({-1, 0}, {2});
  const std::vector<float> zeros{0, 0};
  EXPECT_EQ(slopes(x, [](const NDArray& a) { return sqrt(clip(a, 0, 1)); }), zeros);
  EXPECT_EQ(slopes(x, [](const NDArray& a) { return sqrt(relu(a)); }), zeros);
  EXPECT_EQ(slopes(x, [](const NDArray& a) { return sqrt(power(a, 0) - 1); }), zeros);
  EXPECT_EQ(slopes(x, [](const NDArray& a) { return sqrt(power(a, NDArray::zeros({2})) - 1); }), zeros);
  const NDArray sure = NDArray::from<float>({2, 3}, {2});
  EXPECT_EQ(slopes(sure, [](const NDArray& a) { return sqrt(hinge_loss(a, NDArray::full({2}, 1), Reduction::kNone)); }),
            zeros);
}

TEST(GradientLimits, NormsOfSmallOrderLargeOrderAndHalves) {
  const auto by_order = [](double order) { return [order](const NDArray& a) { return norm(a, order); }; };
  EXPECT_EQ(slopes(NDArray::from<float>({0, 4}, {2}), by_order(0.5)), (std::vector<float>{0, 1}));
  EXPECT_EQ(slopes(NDArray::from<float>({1e-15f, 0}, {2}), by_order(4)), (std::vector<float>{0, 0}));  // norm 0
  const NDArray half = NDArray::from<float>({300, 0}, {2}).cast(DType::kFloat16);
  EXPECT_EQ(slopes(half, by_order(4)), (std::vector<float>{1, 0}));
}

TEST(ValueLimits, NormaliseHalves) {
  const NDArray x = NDArray::from<float>({0, 0, 40000, 40000}, {2, 2}).cast(DType::kFloat16);
  const std::vector<float> y = l2_normalize(x, 1).to_vector<float>();
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_NEAR(y[2], std::sqrt(0.5), 1e-3);
  EXPECT_NEAR(y[3], std::sqrt(0.5), 1e-3);
}

TEST(ValueLimits, NoDivergenceWithoutTarget) {
  const NDArray never = NDArray::full({1}, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(kl_divergence(never, NDArray::zeros({1})).item<float>(), 0);
}

}  // namespace
}  // namespace paceline::test
