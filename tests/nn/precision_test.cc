// Layers that compute in bfloat16 and float16.
#include <gtest/gtest.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

#include <cmath>
#include <functional>

namespace paceline {
namespace {

constexpr DType kHalves[] = {DType::kBfloat16, DType::kFloat16};

NDArray filled(const Shape& shape, std::uint64_t seed) {
  const NDArray x(shape);
  kernels::fill_normal(x, 0, 1, seed);
  return x;
}

// The gradients of the weights, end to end; weights are made in float32 from the same seed.
std::vector<float> gradients(const nn::Module& net, const NDArray& x, const nn::Context& context, DType* gives) {
  net.initialize(x.shape(), 5);
  Tape tape;
  for (const auto& parameter : net.parameters())
    if (!parameter->statistic) tape.watch(parameter->value, parameter->gradient);
  const NDArray output = net(x, context);
  *gives = output.dtype();
  tape.backward(mean(square(cast(output, DType::kFloat32))));
  std::vector<float> all;
  for (const auto& parameter : net.parameters()) {
    EXPECT_EQ(parameter->value.dtype(), DType::kFloat32) << parameter->name;
    if (parameter->statistic) continue;
    for (const float value : parameter->gradient.to_vector<float>()) all.push_back(value);
  }
  return all;
}

struct Case {
  const char* name;
  std::function<nn::Module()> net;
  NDArray x;
  bool narrow = true;  // what it gives
};

TEST(MixedPrecision, LayersComputeInItAndKeepTheirWeights) {
  const std::vector<Device> devices{Device("cpu:0"), Device("cpu:1")};
  const NDArray rows = filled({4, 6}, 1), images = filled({3, 4, 6, 6}, 2), steps = filled({5, 3, 8}, 3);
  const std::vector<Case> cases{
      {"dense", [] { return nn::Sequential(nn::Dense(5), nn::Relu(), nn::Dense(3)); }, rows},
      {"convolution",
       [] { return nn::Sequential(nn::Conv2d(6, 3), nn::BatchNorm(), nn::Relu(), nn::MaxPool(2), nn::Dense(3)); },
       images},
      {"transposed", [] { return nn::Sequential(nn::TransposedConv(2, 3, {.stride = 2}), nn::BatchNorm()); }, images},
      {"residual", [] { return nn::Residual(nn::Dense(6)); }, rows, false},
      {"attention",
       [] { return nn::Sequential(nn::PositionalEmbedding(), nn::LayerNorm(), nn::SelfAttention(2), nn::Dense(2)); },
       steps},
      {"norm", [] { return nn::Sequential(nn::Dense(6), nn::LayerNorm()); }, rows, false},
      {"rnn", [] { return nn::Rnn(4); }, steps},
      {"gru", [] { return nn::Gru(4); }, steps},
      {"lstm", [] { return nn::Lstm(4, {.layers = 2, .bidirectional = true}); }, steps},
      {"recompute",
       [] { return nn::Recompute(nn::Sequential(nn::Dense(5), nn::BatchNorm(), nn::Tanh(), nn::Dense(3))); }, rows},
      {"parallel",
       [=] {
         return nn::Sequential(nn::ColumnParallelDense(4, devices, {}, false), nn::Tanh(),
                               nn::RowParallelDense(3, devices));
       },
       rows},
      {"shared",
       [] {
         const nn::Dense twice(6);
         return nn::Sequential(twice, nn::Tanh(), twice);
       },
       rows}};
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    DType gives{};
    const auto wanted = gradients(test.net(), test.x, {.training = true}, &gives);
    EXPECT_EQ(gives, DType::kFloat32);
    double length = 0;
    for (const float value : wanted) length += value * value;
    for (const DType half : kHalves) {
      SCOPED_TRACE(name_of(half));
      const auto found = gradients(test.net(), test.x, {.training = true, .compute = half}, &gives);
      EXPECT_EQ(gives, test.narrow ? half : DType::kFloat32);
      ASSERT_EQ(found.size(), wanted.size());
      double apart = 0;
      for (std::size_t i = 0; i < found.size(); ++i) apart += std::pow(found[i] - wanted[i], 2);
      EXPECT_LT(std::sqrt(apart / length), half == DType::kFloat16 ? 0.01 : 0.06);
      EXPECT_GT(apart, 0);
    }
  }
}

TEST(MixedPrecision, LeavesDoubleAlone) {
  const nn::Dense net(3);
  const NDArray x = filled({2, 4}, 1).cast(DType::kFloat64);
  net.initialize(x.shape(), 1, {}, DType::kFloat64);
  EXPECT_EQ(net(x, {.compute = DType::kBfloat16}).dtype(), DType::kFloat64);
}

}  // namespace
}  // namespace paceline
