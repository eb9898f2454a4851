#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

#include <cmath>
#include <filesystem>
#include <map>

namespace paceline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A test may end while its tasks still run, but the program must not: libraries are torn down then.
class TasksEnd : public testing::Environment {
 public:
  void TearDown() override { default_engine().wait_all(); }
};
[[maybe_unused]] const testing::Environment* const kTasksEnd = testing::AddGlobalTestEnvironment(new TasksEnd);

nn::Module lenet() {
  return nn::Sequential(nn::Conv2d(6, 5, {.padding = 2}), nn::Tanh(), nn::MaxPool(2), nn::Conv2d(16, 5), nn::Tanh(),
                        nn::MaxPool(2), nn::Flatten(), nn::Dense(120), nn::Tanh(), nn::Dense(84), nn::Tanh(),
                        nn::Dense(10));
}

std::vector<std::string> names(const nn::Module& net) {
  std::vector<std::string> all;
  for (const auto& parameter : net.parameters()) all.push_back(parameter->name);
  return all;
}

TEST(Module, InfersSizesAtTheFirstCall) {
  const nn::Module net = lenet();
  EXPECT_TRUE(net.parameters().empty());
  EXPECT_EQ(net(NDArray::zeros({3, 1, 28, 28})).shape(), (Shape{3, 10}));
  EXPECT_EQ(net.parameter_count(), 61706);
  EXPECT_THAT(names(net), ElementsAre("0.weight", "0.bias", "3.weight", "3.bias", "7.weight", "7.bias", "9.weight",
                                      "9.bias", "11.weight", "11.bias"));
  EXPECT_THAT(net.describe(), HasSubstr("61706 parameters"));
}

TEST(Module, ConvolvesOverOneToThreeAxes) {
  const auto shape = [](const nn::Module& net, const Shape& x) { return net(NDArray::zeros(x)).shape(); };
  EXPECT_EQ(shape(nn::Sequential(nn::Conv1d(4, 3), nn::MaxPool(2)), {2, 3, 10}), (Shape{2, 4, 4}));
  EXPECT_EQ(shape(nn::Sequential(nn::Conv3d(4, 2, {.groups = 2}), nn::AveragePool(3, 2, 1)), {2, 2, 4, 5, 6}),
            (Shape{2, 4, 2, 2, 3}));
  EXPECT_EQ(shape(nn::TransposedConv(6, 3, {.stride = 2, .padding = 1, .groups = 2}, 1), {2, 4, 5, 7}),
            (Shape{2, 6, 10, 14}));
  EXPECT_EQ(shape(nn::GlobalAveragePool(), {2, 3, 4}), (Shape{2, 3, 1}));
  EXPECT_THROW(shape(nn::Conv1d(4, 3), {2, 3, 10, 10}), InvalidArgument);
}

// Layers and directions are put together as their names say.
TEST(Module, RecurrentLayersAreStacked) {
  const nn::Module net = nn::Lstm(3, {.layers = 2, .bidirectional = true});
  net.initialize({5, 2, 4}, 1);
  std::map<std::string, NDArray> w;
  for (const auto& parameter : net.parameters()) w[parameter->name] = parameter->value;
  EXPECT_EQ(w.size(), 16u);
  NDArray x({5, 2, 4});
  kernels::fill_normal(x, 0, 1, 7);
  const NDArray zeros = NDArray::zeros({2, 3});
  NDArray expected = x;
  for (const char* layer : {"0", "1"}) {
    const auto direction = [&](const std::string& end, bool reverse) {
      return lstm(expected, zeros, zeros,
                  {w.at("weight_x" + end), w.at("weight_state" + end), w.at("bias_x" + end), w.at("bias_state" + end)},
                  reverse)
          .states;
    };
    expected = concat({direction(layer, false), direction(std::string(layer) + "_reverse", true)}, 2);
  }
  EXPECT_EQ(net(x).to_vector<float>(), expected.to_vector<float>());
  EXPECT_EQ(nn::Sequential(nn::Gru(6), nn::Rnn(4, {.bias = false}))(x).shape(), (Shape{5, 2, 4}));
}

TEST(Module, SeedsDecideTheWeights) {
  const nn::Module a = lenet(), b = lenet(), c = lenet();
  a.initialize({1, 1, 28, 28}, 5);
  b.initialize({7, 1, 28, 28}, 5);
  c.initialize({1, 1, 28, 28}, 6);
  const auto weight = [](const nn::Module& net, std::size_t i) {
    return net.parameters()[i]->value.to_vector<float>();
  };
  EXPECT_EQ(weight(a, 4), weight(b, 4));
  EXPECT_NE(weight(a, 4), weight(c, 4));
  const nn::Module twins = nn::Sequential(nn::Dense(4), nn::Dense(4));
  twins.initialize({1, 4}, 5);
  EXPECT_NE(weight(twins, 0), weight(twins, 2));
  const nn::Module single = nn::Sequential(nn::Dense(4));
  single.initialize({1, 3}, 5);
  EXPECT_EQ(single.parameter_count(), 16);
}

// A user's own, which hands its context on.
class Twins final : public nn::Layer {
 public:
  explicit Twins(const nn::Module& first, const nn::Module& second) {
    add_child("first", first.layer());
    add_child("second", second.layer());
  }
  NDArray forward(const NDArray& x, const nn::Context& context) override {
    return concat({(*children()[0].second)(x, context), (*children()[1].second)(x, context)}, 0);
  }
  std::string kind() const override { return "Twins"; }
};

TEST(Module, EveryCallOfAChildHasASeedOfItsOwn) {
  const nn::Module dense(std::make_shared<Twins>(nn::Dense(4), nn::Dense(4)));
  dense.initialize({1, 6}, 3);
  const auto parameters = dense.parameters();
  EXPECT_NE(parameters[0]->value.to_vector<float>(), parameters[2]->value.to_vector<float>());

  const auto halves = [](const nn::Module& net) {
    const std::vector<float> both = net(NDArray::full({1, 64}, 1), {.training = true, .seed = 5}).to_vector<float>();
    return std::pair(std::vector(both.begin(), both.begin() + 64), std::vector(both.begin() + 64, both.end()));
  };
  const auto twins = [] {
    const nn::Module one = nn::Dropout(0.5);
    return nn::Module(std::make_shared<Twins>(one, one));
  };
  const auto [first, second] = halves(twins());
  EXPECT_NE(first, second);
  EXPECT_EQ(halves(twins()), std::pair(first, second));
  EXPECT_EQ(halves(nn::Recompute(twins())), std::pair(first, second));
}

TEST(Module, SavesAndLoadsByName) {
  const std::string path = testing::TempDir() + "paceline_module.params";
  const nn::Module saved = lenet(), loaded = lenet(), other = nn::Sequential(nn::Dense(3), nn::Dense(2));
  saved.initialize({1, 1, 28, 28}, 1);
  loaded.initialize({1, 1, 28, 28}, 2);
  other.initialize({1, 4}, 1);
  saved.save(path);
  loaded.load(path);
  const NDArray x = NDArray::full({2, 1, 28, 28}, 0.5);
  EXPECT_EQ(saved(x).to_vector<float>(), loaded(x).to_vector<float>());
  try {
    other.load(path);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("0.weight"));
  }
  std::filesystem::remove(path);
}

TEST(Module, DropoutOnlyWhileTraining) {
  const nn::Module net = nn::Sequential(nn::Dropout(0.5), nn::Flatten());
  const NDArray x = NDArray::full({1, 1000}, 1), call = NDArray::full({1}, 3, DType::kInt64);
  EXPECT_EQ(net(x).to_vector<float>(), x.to_vector<float>());
  const auto a = net(x, {.training = true, .seed = 1, .call = call}).to_vector<float>();
  EXPECT_EQ(a, net(x, {.training = true, .seed = 1, .call = call}).to_vector<float>());
  EXPECT_NE(a, net(x, {.training = true, .seed = 2, .call = call}).to_vector<float>());
}

TEST(Module, BatchNormKeepsStatistics) {
  const nn::Module net = nn::Sequential(nn::BatchNorm({.momentum = 0}), nn::Flatten());
  const NDArray x = NDArray::from(std::vector<float>{1, 3}, {2, 1});
  net(x, {.training = true});
  const auto parameters = net.parameters();
  ASSERT_EQ(parameters.size(), 4u);
  EXPECT_TRUE(parameters[2]->statistic);
  EXPECT_THAT(parameters[2]->value.to_vector<float>(), ElementsAre(2));
  EXPECT_EQ(net.parameter_count(), 2);
}

TEST(Module, SaysWhatDoesNotFit) {
  EXPECT_THROW(nn::Dense(0), InvalidArgument);
  EXPECT_THROW(nn::Dropout(1.0), InvalidArgument);
  EXPECT_THROW(nn::Conv2d(4, 3)(NDArray::zeros({2, 8})), InvalidArgument);
}

TEST(Accuracy, CountsOverBatches) {
  nn::Accuracy accuracy;
  const NDArray scores = NDArray::from(std::vector<float>{1, 2, 5, 4}, {2, 2});
  for (int i = 0; i < 10; ++i) accuracy.update(scores, NDArray::from(std::vector<std::int32_t>{1, 1}, {2}));
  EXPECT_DOUBLE_EQ(accuracy.value(), 0.5);
  EXPECT_EQ(accuracy.examples(), 20);
}

TEST(Accuracy, LabelsThatAreNoClassAreWrongOrIgnored) {
  const NDArray scores = NDArray::from(std::vector<float>{1, 2, 1, 2, 1, 2, 1, 2}, {4, 2});
  const NDArray labels = NDArray::from(std::vector<float>{1, -1, std::nanf(""), 1.7f}, {4});
  nn::Accuracy all, counted(-1);
  all.update(scores, labels);
  counted.update(scores, labels);
  EXPECT_DOUBLE_EQ(all.value(), 0.25);
  EXPECT_EQ(all.examples(), 4);
  EXPECT_DOUBLE_EQ(counted.value(), 1.0 / 3);
  EXPECT_EQ(counted.examples(), 3);
}

TEST(Losses, L2DoesNotBroadcast) {
  const NDArray output = NDArray::from(std::vector<double>{1, 2, 3}, {3, 1});
  EXPECT_DOUBLE_EQ(nn::l2(output, NDArray::from(std::vector<double>{1, 1, 1}, {3})).item<double>(), 5.0 / 6);
  EXPECT_THAT(
      [&] {
        nn::l2(output, NDArray::zeros({1, 3}, DType::kFloat64));
      },
      testing::Not(testing::Throws<InvalidArgument>()));
  EXPECT_THAT([&] { nn::l2(output, NDArray::zeros({}, DType::kFloat64)); },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::AllOf(HasSubstr("[l2] the output is float64 (3, 1)"), HasSubstr("float64 ()"))));
  EXPECT_THROW(nn::l2(output, NDArray::zeros({2}, DType::kFloat64)), InvalidArgument);
}

TEST(Module, BatchNormTakesFloat64) {
  const nn::Module net = nn::BatchNorm();
  const NDArray x = NDArray::from(std::vector<double>{1, 2, 3, 6}, {4, 1});
  const NDArray y = net(x, {.training = true});
  EXPECT_EQ(y.dtype(), DType::kFloat64);
  EXPECT_NEAR(y.to_vector<double>()[3], 3 / std::sqrt(3.5 + 1e-5), 1e-12);
  EXPECT_NEAR(net(x).to_vector<double>()[0], (1 - 0.3) / std::sqrt(0.9 + 0.1 * 3.5 + 1e-5), 1e-1);
}

// As in a Trainer, which counts its steps.
TEST(Module, DropoutDrawsAnotherMaskAtEachCall) {
  const nn::Module net = nn::Sequential(nn::Dropout(0.5), nn::Dropout(0.5));
  const NDArray x = NDArray::full({1, 200}, 1);
  const auto first = net(x, {.training = true}).to_vector<float>();
  EXPECT_NE(net(x, {.training = true}).to_vector<float>(), first);
  EXPECT_EQ(net(x).to_vector<float>(), x.to_vector<float>());
  const nn::Module again = nn::Sequential(nn::Dropout(0.5), nn::Dropout(0.5));
  EXPECT_EQ(again(x, {.training = true}).to_vector<float>(), first);
}

TEST(RocAuc, CountsPairsInOrder) {
  const auto auc = [](const std::vector<float>& scores, const std::vector<float>& labels) {
    const auto count = static_cast<std::int64_t>(scores.size());
    return nn::roc_auc(NDArray::from(scores, {count, 1}), NDArray::from(labels, {count}));
  };
  EXPECT_DOUBLE_EQ(auc({1, 2, 3, 4}, {0, 0, 1, 1}), 1);
  EXPECT_DOUBLE_EQ(auc({4, 2, 3, 1}, {0, 0, 1, 1}), 0.25);
  EXPECT_DOUBLE_EQ(auc({1, 1, 1, 1, 1}, {0, 1, 0, 1, 0}), 0.5);
  EXPECT_DOUBLE_EQ(auc({1, 2, 2, 0}, {0, 0, 1, 1}), (0.5 + 1) / 4);
  EXPECT_EQ(nn::roc_auc(NDArray::from<double>({1 - 1e-9, 1 - 2e-9}, {2}), NDArray::from<double>({1, 0}, {2})), 1);
  EXPECT_THROW(auc({1, 2}, {1, 1}), InvalidArgument);
  EXPECT_THROW(auc({1, 2}, {1, 0, 0}), InvalidArgument);
  EXPECT_THROW(auc({1, std::nanf(""), 3}, {1, 0, 0}), InvalidArgument);
}

}  // namespace
}  // namespace paceline
