// Layers that put others together, and those of transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

#include <map>

namespace paceline {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::Pointwise;

NDArray noise(const Shape& shape, std::uint64_t seed = 1) {
  const NDArray x(shape);
  kernels::fill_normal(x, 0, 1, seed);
  return x;
}

TEST(Residual, AddsItsShortcut) {
  const nn::Module twice = nn::Lambda("Twice", [](const NDArray& x) { return x * 2; });
  const nn::Module square = nn::Lambda("Square", [](const NDArray& x) { return x * x; });
  const NDArray x = NDArray::from(std::vector<float>{1, -3}, {1, 2});
  EXPECT_THAT(nn::Residual(square)(x).to_vector<float>(), ElementsAre(2, 6));
  EXPECT_THAT(nn::Residual(square, twice)(x).to_vector<float>(), ElementsAre(3, 3));
}

TEST(Residual, NamesItsParts) {
  const nn::Module net = nn::Sequential(nn::Residual(nn::Dense(3, {.bias = false}), nn::Dense(3)));
  net.initialize({1, 4}, 1);
  std::vector<std::string> names;
  for (const auto& parameter : net.parameters()) names.push_back(parameter->name);
  EXPECT_THAT(names, ElementsAre("0.body.weight", "0.shortcut.weight", "0.shortcut.bias"));
  EXPECT_NE(net.parameters()[0]->value.to_vector<float>(), net.parameters()[1]->value.to_vector<float>());
  EXPECT_THROW(nn::Residual(nn::Dense(3))(NDArray::zeros({1, 4})), InvalidArgument);
}

// The same numbers as the activation behind it, recorded or not.
TEST(Dense, AppliesAnActivation) {
  const std::pair<Activation, nn::Module> known[] = {{Activation::kRelu, nn::Relu()},
                                                     {Activation::kGeluTanh, nn::Lambda("GeluTanh", gelu_tanh)}};
  for (const auto& [activation, layer] : known)
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
      const nn::Module one = nn::Sequential(nn::Dense(20, {.activation = activation}));
      const nn::Module two = nn::Sequential(nn::Dense(20), layer);
      const NDArray x = noise({30, 200}).cast(dtype);  // enough for oneDNN
      std::vector<std::vector<double>> results[2];
      for (const nn::Module& net : {one, two}) {
        net.initialize(x.shape(), 1, {}, dtype);
        auto& result = results[net.layer() == two.layer()];
        result.push_back(net(x).to_vector<double>());
        Tape tape;
        for (const auto& parameter : net.parameters()) tape.watch(parameter->value, parameter->gradient);
        const NDArray y = net(x, {.training = true});
        tape.backward(sum(y * y));
        result.push_back(y.to_vector<double>());
        for (const auto& parameter : net.parameters()) result.push_back(parameter->gradient.to_vector<double>());
      }
      EXPECT_EQ(results[0], results[1]) << name_of(dtype);
    }
}

TEST(LayerNorm, NormalisesTheLastAxis) {
  const nn::Module net = nn::LayerNorm();
  const NDArray y = net(noise({2, 3, 64}) * 5 + 2);
  EXPECT_THAT(mean(y, {2}).to_vector<float>(), testing::Each(FloatNear(0, 1e-5f)));
  EXPECT_THAT(mean(y * y, {2}).to_vector<float>(), testing::Each(FloatNear(1, 1e-3f)));
  EXPECT_EQ(net.parameter_count(), 128);
}

TEST(Embedding, TakesNumbersOfAnyType) {
  const nn::Module net = nn::Embedding(5, 3);
  const NDArray ids = NDArray::from(std::vector<std::int32_t>{4, 0, 4}, {3});
  const auto rows = net(ids).to_vector<float>();
  EXPECT_EQ(net(ids.cast(DType::kFloat32)).to_vector<float>(), rows);
  EXPECT_EQ(net(ids.cast(DType::kInt64)).to_vector<float>(), rows);
}

TEST(PositionalEmbedding, AddsAVectorToEachStep) {
  const nn::Module net = nn::PositionalEmbedding();
  const auto two = net(NDArray::zeros({2, 4, 3})).to_vector<float>();
  const auto weight = net.parameters()[0]->value.to_vector<float>();
  EXPECT_EQ(std::vector<float>(two.begin(), two.begin() + 12), weight);
  EXPECT_EQ(std::vector<float>(two.begin() + 12, two.end()), weight);
  EXPECT_EQ(net(NDArray::zeros({1, 2, 3})).to_vector<float>(), std::vector<float>(weight.begin(), weight.begin() + 6));
  EXPECT_THROW(net(NDArray::zeros({1, 5, 3})), InvalidArgument);
}

// One head at a time, by its own slices of the weights.
TEST(SelfAttention, IsAttentionOfEachHead) {
  const std::int64_t steps = 5, width = 6, heads = 2, own = width / heads;
  const nn::Module net = nn::SelfAttention(heads, {.causal = true});
  const NDArray x = noise({2, steps, width});
  const NDArray y = net(x);
  EXPECT_EQ(y.shape(), x.shape());
  std::map<std::string, NDArray> w;
  for (const auto& parameter : net.parameters()) w[parameter->name] = parameter->value;
  std::vector<NDArray> seen;
  for (std::int64_t head = 0; head < heads; ++head) {
    const auto of = [&](std::int64_t part) {
      const std::int64_t begin = part * width + head * own;
      return dense(x, slice(w.at("weight_in"), 0, begin, begin + own).clone(), {}, false);
    };
    seen.push_back(attention(of(0), of(1), of(2), {}, {.causal = true}));
  }
  const NDArray expected = dense(concat(seen, 2), w.at("weight_out"), {}, false);
  EXPECT_THAT(y.to_vector<float>(), Pointwise(FloatNear(1e-5f), expected.to_vector<float>()));
}

TEST(SelfAttention, CausalDoesNotSeeWhatComes) {
  const nn::Module causal = nn::SelfAttention(2, {.causal = true}), open = nn::SelfAttention(2);
  const NDArray x = noise({1, 4, 6}), changed = x.clone();
  slice(changed, 1, 3).fill(7);
  const auto first = [](const NDArray& y) { return slice(y, 1, 0, 3).clone().to_vector<float>(); };
  EXPECT_EQ(first(causal(x)), first(causal(changed)));
  EXPECT_NE(first(open(x)), first(open(changed)));
  EXPECT_THROW(nn::SelfAttention(4)(x), InvalidArgument);
  EXPECT_THROW(nn::SelfAttention(2)(NDArray::zeros({4, 6})), InvalidArgument);
}

TEST(SelfAttention, EveryWeightIsTrained) {
  const nn::Module net = nn::Sequential(
      nn::PositionalEmbedding(), nn::Residual(nn::Sequential(nn::LayerNorm(), nn::SelfAttention(2, {.causal = true}))));
  const NDArray x = noise({3, 4, 6});
  net.initialize(x.shape(), 1);
  Tape tape;
  for (const auto& parameter : net.parameters()) tape.watch(parameter->value, parameter->gradient);
  tape.backward(mean(square(net(x, {.training = true}))));
  for (const auto& parameter : net.parameters())
    EXPECT_GT(sum(abs(parameter->gradient)).item<float>(), 0) << parameter->name;
}

TEST(Losses, CrossEntropyTakesWeightsSmoothingSharesAndIgnoredLabels) {
  const NDArray scores = NDArray::from<double>({1, 2, 3, 0, 1, 0}, {2, 3}),
                labels = NDArray::from<std::int32_t>({2, 1}, {2});
  const NDArray weights = NDArray::from<double>({0.5, 2, 1}, {3}), logs = log_softmax(scores);
  const double first = -logs.at(0).at(2).item<double>(), second = -logs.at(1).at(1).item<double>();
  EXPECT_NEAR(nn::softmax_ce(scores, labels).item<double>(), (first + second) / 2, 1e-12);
  EXPECT_NEAR(nn::cross_entropy({.class_weights = weights})(scores, labels).item<double>(), (first + 2 * second) / 3,
              1e-12);
  EXPECT_NEAR(nn::cross_entropy({.ignored_label = 2})(scores, labels).item<double>(), second, 1e-12);
  EXPECT_NEAR(nn::cross_entropy({.class_weights = weights, .ignored_label = 1})(scores, labels).item<double>(), first,
              1e-12);
  const NDArray shares = one_hot(labels, 3, DType::kFloat64);
  EXPECT_NEAR(nn::softmax_ce(scores, shares).item<double>(), (first + second) / 2, 1e-12);
  // Smoothing is the loss of smoothed shares, over several axes too.
  const NDArray smoothed = shares * 0.7 + 0.1;
  const double expected = nn::softmax_ce(scores, smoothed).item<double>();
  EXPECT_NEAR(nn::cross_entropy({.label_smoothing = 0.3})(scores, labels).item<double>(), expected, 1e-12);
  EXPECT_NEAR(nn::softmax_ce(scores.view({1, 2, 3}), smoothed.view({1, 2, 3})).item<double>(), expected, 1e-12);
  EXPECT_THROW(nn::cross_entropy({.label_smoothing = 0.3})(scores, shares), InvalidArgument);
  EXPECT_THROW(nn::cross_entropy({.class_weights = weights.narrow(0, 0, 2)})(scores, labels), InvalidArgument);
}

}  // namespace
}  // namespace paceline
