#include <paceline/cores.h>
#include <paceline/kernel.h>
#include <paceline/random.h>

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>

namespace paceline {
namespace {

void expect_words(const RandomBits& bits, const RandomBits& expected) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(bits.word[i], expected.word[i]);
}

// From the file of known answers that its authors publish.
TEST(PhiloxTest, GivesTheKnownAnswers) {
  expect_words(philox({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_words(philox({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u), {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_words(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(PhiloxTest, NormalPairsAgreeWithTheLibrarysFunctions) {
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const RandomBits bits = random_bits(5, i);
    const double u = 1 - uniform_double(bits.word[0], bits.word[1]);
    const double v = uniform_double(bits.word[2], bits.word[3]);
    const RandomPair z = normal_pair(u, v);
    const double radius = std::sqrt(-2 * std::log(u));
    ASSERT_NEAR(z.first, radius * std::cos(2 * std::numbers::pi * v), 4e-15 * (1 + radius)) << u << " " << v;
    ASSERT_NEAR(z.second, radius * std::sin(2 * std::numbers::pi * v), 4e-15 * (1 + radius)) << u << " " << v;
  }
  EXPECT_EQ(normal_pair(1, 0.3).first, 0);
  EXPECT_TRUE(std::isfinite(normal_pair(0x1p-53, 0.999999).second));
}

class RandomFillTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, RandomFillTest,
                         ::testing::Values(DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(RandomFillTest, UniformStaysInItsRange) {
  const NDArray x({100001}, GetParam());
  kernels::fill_uniform(x, -0.25, 0.5, 3);
  const std::vector<double> values = x.to_vector<double>();
  double sum = 0;
  for (const double value : values) {
    ASSERT_GE(value, -0.25);
    ASSERT_LT(value, 0.5);
    sum += value;
  }
  EXPECT_NEAR(sum / 100001, 0.125, 0.003);
}

TEST_P(RandomFillTest, NormalHasItsMoments) {
  const NDArray x({100001}, GetParam());
  kernels::fill_normal(x, 1, 2, 4);
  const std::vector<double> values = x.to_vector<double>();
  double moments[5] = {};
  for (const double value : values) {
    const double z = (value - 1) / 2;
    for (int n = 1; n <= 4; ++n) moments[n] += std::pow(z, n) / 100001;
  }
  EXPECT_NEAR(moments[1], 0, 0.015);
  EXPECT_NEAR(moments[2], 1, 0.02);
  EXPECT_NEAR(moments[3], 0, 0.05);
  EXPECT_NEAR(moments[4], 3, 0.15);
}

TEST(RandomFill, MeanAndDeviationMoveTheSameNumbers) {
  const NDArray standard({1001}, DType::kFloat64), moved({1001}, DType::kFloat64);
  kernels::fill_normal(standard, 0, 1, 4);
  kernels::fill_normal(moved, 5, 2, 4);
  const std::vector<double> z = standard.to_vector<double>(), x = moved.to_vector<double>();
  for (std::size_t i = 0; i < z.size(); ++i) ASSERT_DOUBLE_EQ(x[i], 5 + 2 * z[i]);
}

TEST(RandomFill, UniformNumbersAreThoseOfTheGenerator) {
  const NDArray single({1001}), wide({1001}, DType::kFloat64);
  kernels::fill_uniform(single, 0, 1, 6);
  kernels::fill_uniform(wide, 0, 1, 6);
  const std::vector<float> floats = single.to_vector<float>();
  const std::vector<double> doubles = wide.to_vector<double>();
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(floats[i], random_uniform(6, i)) << i;
    const RandomBits bits = random_bits(6, i / 2);
    ASSERT_EQ(doubles[i], uniform_double(bits.word[i % 2 * 2], bits.word[i % 2 * 2 + 1])) << i;
  }
}

TEST_P(RandomFillTest, NumbersDependOnSeedAndPlaceOnly) {
  const NDArray large({300000}, GetParam());
  const NDArray small({1001}, GetParam(), Device("sim:0"));
  const NDArray turned = NDArray({13, 77}, GetParam()).permute({1, 0});
  kernels::fill_normal(large, 0, 1, 9);
  kernels::fill_normal(small, 0, 1, 9);
  kernels::fill_normal(turned, 0, 1, 9);
  const std::vector<double> expected = large.narrow(0, 0, 1001).to_vector<double>();
  EXPECT_EQ(small.to_vector<double>(), expected);
  EXPECT_EQ(turned.to_vector<double>(), expected);
  const NDArray other({1001}, GetParam());
  kernels::fill_normal(other, 0, 1, 10);
  EXPECT_NE(other.to_vector<double>(), expected);

  const auto serial = make_serial_engine();
  const int team = team_size();
  set_team_size(1);
  const NDArray alone({300000}, GetParam(), Device(), *serial);
  kernels::fill_normal(alone, 0, 1, 9);
  set_team_size(team);
  EXPECT_EQ(alone.to_vector<double>(), large.to_vector<double>());
}

TEST(RandomFillErrors, RefusesWhatIsNoDistribution) {
  const NDArray x({4});
  EXPECT_THROW(kernels::fill_uniform(x, 1, 1, 0), InvalidArgument);
  EXPECT_THROW(kernels::fill_uniform(x, 0, std::nan(""), 0), InvalidArgument);
  EXPECT_THROW(kernels::fill_uniform(x, -1e308, 1e308, 0), InvalidArgument);
  EXPECT_THROW(kernels::fill_normal(x, 0, -1, 0), InvalidArgument);
  EXPECT_THROW(kernels::fill_normal(NDArray({4}, DType::kInt32), 0, 1, 0), InvalidArgument);
}

}  // namespace
}  // namespace paceline
