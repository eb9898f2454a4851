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

// As PyTorch's: 0 where 0^b does not depend on b, and not NaN where it is infinite.
TEST(GradientLimits, PowersOfZero) {
  const NDArray b = NDArray::from<float>({-1, 0, 2}, {3});
  const std::vector<float> expected{-std::numeric_limits<float>::infinity(), 0, 0};
  EXPECT_EQ(slopes(b, [](const NDArray& x) { return power(0, x); }), expected);
  EXPECT_EQ(slopes(b, [](const NDArray& x) { return power(NDArray::zeros({3}), x); }), expected);
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

NDArray halves(const std::vector<float>& values) {
  return NDArray::from(values, {static_cast<std::int64_t>(values.size())}).cast(DType::kFloat16);
}

TEST(HalfTypes, GradientsOfRowsThatRepeatAreSummedInFloat) {
  constexpr std::int64_t kTimes = 4096;  // float16 alone stops at 2048
  const NDArray ids = NDArray::zeros({kTimes}, DType::kInt64);
  const NDArray table = NDArray::full({2, 1}, 1, DType::kFloat16);
  const std::vector<float> expected{kTimes, 0};
  EXPECT_EQ(slopes(table, [&](const NDArray& a) { return embedding(ids, a); }), expected);
  EXPECT_EQ(slopes(table, [&](const NDArray& a) { return take(a, ids); }), expected);
}

TEST(HalfTypes, ProductsOfOthersAreMadeInFloat) {
  // 320 * 320 is infinite in float16.
  EXPECT_EQ(slopes(halves({320, 320, 0.25, 0.125}), [](const NDArray& a) { return prod(a); }),
            (std::vector<float>{10, 10, 12800, 25600}));
}

TEST(HalfTypes, SharesOfLogSumExpAreMadeInFloat) {
  const NDArray x = halves({1000, 1000, 1000});
  for (const float share : slopes(x, [](const NDArray& a) { return logsumexp(a); })) EXPECT_NEAR(share, 1.0 / 3, 3e-4);
}

TEST(HalfTypes, ATemperatureDoesNotLeaveTheRange) {
  const NDArray x = halves({1000, 999.5});
  const std::vector<float> y = softmax(x, NDArray(), 0.01).to_vector<float>();
  EXPECT_EQ(y, (std::vector<float>{1, 0}));  // the quotients are infinite in float16
  EXPECT_NEAR(log_softmax(x, NDArray(), 0.01).to_vector<float>()[1], -50, 0.03);
}

}  // namespace
}  // namespace paceline::test
