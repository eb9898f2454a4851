// What docs/from-pytorch.md says differs from PyTorch: a test for each row of its table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/autograd.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <paceline/optimizer.h>
#include <support/paths.h>

#include <array>
#include <cmath>
#include <fstream>
#include <set>
#include <string>

namespace paceline {
namespace {

TEST(FromPyTorch, BytesWithAndWithoutASignAreInt32) {
  const NDArray sum = NDArray::from<std::uint8_t>({255}, {1}) + NDArray::from<std::int8_t>({-1}, {1});
  EXPECT_EQ(sum.dtype(), DType::kInt32);
  EXPECT_EQ(sum.item<std::int32_t>(), 254);
}

TEST(FromPyTorch, NumbersThatDoNotFitAreRefused) {
  EXPECT_THROW(NDArray::from<std::uint8_t>({1}, {1}) + 300, InvalidArgument);
  EXPECT_THROW(NDArray::from<std::uint8_t>({1}, {1}) + -1, InvalidArgument);
  EXPECT_THROW(NDArray::full({1}, 1, DType::kFloat16) * 1e6, InvalidArgument);
}

TEST(FromPyTorch, WhereEqualToANumberMaximumHasNoGradient) {
  for (NDArray (*f)(const NDArray&, Number) : {static_cast<NDArray (*)(const NDArray&, Number)>(maximum),
                                               static_cast<NDArray (*)(const NDArray&, Number)>(minimum)}) {
    const NDArray x = NDArray::full({1}, 1), gradient = NDArray::full({1}, 7);
    Tape tape;
    tape.watch(x, gradient);
    tape.backward(sum(f(x, 1.0)));
    EXPECT_EQ(gradient.item<float>(), 0);
  }
}

TEST(FromPyTorch, IntegersDividedByZeroAreZero) {
  const NDArray five = NDArray::from<std::int32_t>({5, -5}, {2});
  EXPECT_EQ(remainder(five, 0).to_vector<std::int32_t>(), (std::vector<std::int32_t>{0, 0}));
  EXPECT_EQ(floor_divide(five, 0).to_vector<std::int32_t>(), (std::vector<std::int32_t>{0, 0}));
}

TEST(FromPyTorch, CumulativeSumsKeepTheType) {
  const NDArray x = NDArray::from<std::int8_t>({100, 100}, {2});
  EXPECT_EQ(cumsum(x).to_vector<std::int8_t>(), (std::vector<std::int8_t>{100, -56}));
  EXPECT_EQ(cumprod(x).dtype(), DType::kInt8);
}

TEST(FromPyTorch, PowersAndProductsOfIntegersAreRefused) {
  const NDArray x = NDArray::zeros({2, 2}, DType::kInt32);
  EXPECT_THROW(power(x, 2), InvalidArgument);
  EXPECT_THROW(matmul(x, x), InvalidArgument);
}

TEST(FromPyTorch, ArithmeticOfBoolIsRefused) {
  const NDArray x = NDArray::zeros({2}, DType::kBool);
  using Binary = NDArray (*)(const NDArray&, const NDArray&);
  for (const Binary f : std::initializer_list<Binary>{add, subtract, multiply, maximum, minimum})
    EXPECT_THROW(f(x, x), InvalidArgument);
  EXPECT_THROW(max(x), InvalidArgument);
  EXPECT_THROW(min(x), InvalidArgument);
}

TEST(FromPyTorch, FunctionsOfSignedNumbersRefuseOthers) {
  for (const DType dtype : {DType::kUint8, DType::kBool})
    for (auto* f : {relu, square, abs, sign, negative, floor, ceil, round})
      EXPECT_THROW(f(NDArray::zeros({2}, dtype)), InvalidArgument);
}

TEST(FromPyTorch, AnyAndAllAreBool) {
  const NDArray x = NDArray::from<std::uint8_t>({0, 2}, {2});
  EXPECT_EQ(any(x).dtype(), DType::kBool);
  EXPECT_EQ(all(x).dtype(), DType::kBool);
}

TEST(FromPyTorch, WindowsDoNotExceedTheArray) {
  EXPECT_THROW(max_pool(NDArray::zeros({1, 1, 2}), {.kernel = {3}, .stride = {1}, .ceil_mode = true}), InvalidArgument);
}

TEST(FromPyTorch, TheRunningVarianceIsBiasedAndMomentumIsTheShareThatStays) {
  const nn::Module net = nn::BatchNorm();
  const NDArray x = NDArray::from<float>({0, 2}, {2, 1});
  net(x, {.training = true});
  net(x, {.training = true});
  for (const auto& parameter : net.parameters()) {
    if (parameter->name == "running_mean") {
      EXPECT_FLOAT_EQ(parameter->value.item<float>(), 0.19f);
    }
    if (parameter->name == "running_var") {
      EXPECT_FLOAT_EQ(parameter->value.item<float>(), 1);
    }
  }
}

TEST(FromPyTorch, BatchNormOnOneValuePerChannelWarnsOnce) {
  const nn::Module net = nn::BatchNorm();
  const auto log_of = [&](const Shape& shape) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(net(NDArray::full(shape, 7), {.training = true}).to_vector<float>()[0], 0);
    return testing::internal::GetCapturedStderr();
  };
  net.initialize({1, 2, 1, 1}, 1);
  EXPECT_EQ(log_of({2, 2, 1, 1}).find("one value per channel"), std::string::npos);
  EXPECT_NE(log_of({1, 2, 1, 1}).find("one value per channel in training, in the shape (1, 2, 1, 1)"),
            std::string::npos);
  EXPECT_EQ(log_of({1, 2, 1, 1}).find("one value per channel"), std::string::npos);
}

TEST(FromPyTorch, AtItsEndsClipHasNoGradient) {
  const NDArray x = NDArray::from<float>({-1, 0, 1}, {3}), gradient({3});
  Tape tape;
  tape.watch(x, gradient);
  tape.backward(sum(clip(x, -1, 1)));
  EXPECT_EQ(gradient.to_vector<float>(), (std::vector<float>{0, 1, 0}));
}

TEST(FromPyTorch, DenseFlattensAndBeginsWithABiasOfZero) {
  const nn::Module net = nn::Dense(2);
  EXPECT_EQ(net(NDArray::zeros({3, 4, 5})).shape(), (Shape{3, 2}));
  EXPECT_EQ(net.parameters()[1]->value.to_vector<float>(), (std::vector<float>{0, 0}));
  EXPECT_EQ(nn::Module(nn::Dense(2, {.flatten = false}))(NDArray::zeros({3, 4, 5})).shape(), (Shape{3, 4, 2}));
}

TEST(FromPyTorch, ScoresHaveTheirClassesLastAndNoLabelIsIgnored) {
  const NDArray scores = NDArray::zeros({2, 3, 4}), labels = NDArray::zeros({2, 3}, DType::kInt64);
  EXPECT_FLOAT_EQ(nn::softmax_ce(scores, labels).item<float>(), std::log(4.0f));
  labels.narrow(1, 0, 1).fill(-100);
  EXPECT_THROW(nn::softmax_ce(scores, labels).wait(), InvalidArgument);
  EXPECT_FLOAT_EQ(nn::cross_entropy({.ignored_label = -100})(scores, labels).item<float>(), std::log(4.0f));
}

TEST(FromPyTorchNames, AreThoseOfThePage) {
  const auto names = [](const nn::Module& net, const Shape& input) {
    net.initialize(input, 1);
    std::string text;
    for (const auto& parameter : net.parameters()) text += (text.empty() ? "" : " ") + parameter->name;
    return text;
  };
  EXPECT_EQ(names(nn::Conv2d(2, 3), {1, 1, 4, 4}), "weight bias");
  EXPECT_EQ(names(nn::LayerNorm(), {2, 3}), "gamma beta");
  EXPECT_EQ(names(nn::BatchNorm(), {2, 3}), "gamma beta running_mean running_var");
  EXPECT_EQ(names(nn::SelfAttention(2), {2, 3, 4}), "weight_in bias_in weight_out bias_out");
  EXPECT_EQ(names(nn::Lstm(3, {.bidirectional = true}), {2, 3, 4}),
            "weight_x0 weight_state0 bias_x0 bias_state0 weight_x0_reverse weight_state0_reverse bias_x0_reverse "
            "bias_state0_reverse");
}

TEST(FromPyTorch, TakeCountsFromTheBack) {
  const NDArray x = NDArray::from<float>({1, 2, 3}, {3});
  EXPECT_EQ(take(x, NDArray::from<std::int64_t>({-1, 0}, {2})).to_vector<float>(), (std::vector<float>{3, 1}));
  EXPECT_THROW(gather(x, NDArray::from<std::int64_t>({-1}, {1}), 0).wait(), InvalidArgument);
}

TEST(FromPyTorch, GatherNdHasTheAxesFirst) {
  const NDArray x = NDArray::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const NDArray positions = NDArray::from<std::int64_t>({0, 1, 1, 2, 0, 1}, {2, 3});
  EXPECT_EQ(gather_nd(x, positions).to_vector<float>(), (std::vector<float>{3, 4, 5}));
}

TEST(FromPyTorch, L2IsHalvedAndDoesNotBroadcast) {
  const NDArray output = NDArray::full({4, 1}, 3), label = NDArray::full({4}, 1);
  EXPECT_EQ(nn::l2(output, label).item<float>(), 2);
  EXPECT_THROW(nn::l2(output, NDArray::zeros({1})), InvalidArgument);
}

TEST(FromPyTorch, AdamsEpsilonStandsBesideTheUncorrectedRoot) {
  double weight = 0, gradient = 1, mean = 0, variance = 0;
  std::array<double*, 2> state{&mean, &variance};
  Tile<double> tile;
  tile.count = 1, tile.gradient = &gradient, tile.weight = &weight, tile.state = state.data();
  make_optimizer(optim::Adam{.lr = 0.1, .epsilon = 1})->update(tile, {.learning_rate = 0.1, .count = 1});
  const double root = std::sqrt(0.001);                  // of the second moment, which starts as (1 - 0.999) * 1
  EXPECT_NEAR(weight, -0.1 * root / (root + 1), 1e-12);  // PyTorch: -0.1 * 1 / (1 + 1)
}

TEST(FromPyTorch, BackwardOverwritesGradients) {
  const NDArray x = NDArray::full({1}, 3), gradient = NDArray::full({1}, 100);
  Tape tape;
  tape.watch(x, gradient);
  const NDArray y = square(x);
  tape.backward(y, {.keep = true});
  EXPECT_EQ(gradient.item<float>(), 6);
  tape.backward(y, {.accumulate = true});
  EXPECT_EQ(gradient.item<float>(), 12);
}

TEST(FromPyTorchTable, NamesTheTestsThatThereAre) {
  std::set<std::string> all, own, named;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (int s = 0; s < tests.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *tests.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(t)->name();
      all.insert(name);
      if (suite.name() == std::string("FromPyTorch")) own.insert(name);
    }
  }
  std::ifstream page(test::source_dir() + "/docs/from-pytorch.md");
  for (std::string line; std::getline(page, line) && !line.starts_with("## ");) {
    if (!line.starts_with("| ") || line.starts_with("| |")) continue;
    const std::size_t begin = line.rfind("| ", line.size() - 3) + 2;
    const std::string name = line.substr(begin, line.size() - 2 - begin);
    EXPECT_TRUE(all.contains(name)) << name;
    named.insert(name);
  }
  for (const std::string& name : own) EXPECT_TRUE(named.contains(name)) << name << " has no row in the table";
  EXPECT_GT(named.size(), own.size());
}

}  // namespace
}  // namespace paceline
