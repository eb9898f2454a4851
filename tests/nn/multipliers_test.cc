// Multipliers of a Trainer's optimizer, by the names of a network's parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/nn.h>

namespace paceline {
namespace {

using testing::HasSubstr;
using testing::Not;

// One step with gradients of zero, so that weight decay alone moves the weights, which begin with ones. Returns what
// the log says.
std::string step(const nn::Module& net, const NDArray& data, const Spec& optimizer) {
  net.initialize(data.shape(), 1, {}, data.dtype());
  for (const auto& parameter : net.parameters()) parameter->value.fill(1);
  const auto nothing = [](const nn::NamedGradients& gradients) {
    for (const auto& [name, gradient] : gradients) gradient.dense.fill(0);
  };
  nn::Trainer trainer(net, optimizer, KVStore::create("local"), {.on_gradients = nothing});
  testing::internal::CaptureStderr();
  Batch batch;
  batch.data = data;
  batch.label = NDArray::zeros(net(data).shape());
  batch.examples = data.size(0);
  trainer.step(batch, nn::l2);
  trainer.synchronize();
  return testing::internal::GetCapturedStderr();
}

std::vector<nn::Module> networks() {
  return {nn::Sequential(nn::Conv2d(2, 3), nn::BatchNorm(), nn::Relu(), nn::Flatten(), nn::Dense(3)),
          nn::Sequential(nn::SelfAttention(2), nn::LayerNorm(), nn::Gru(3), nn::Dense(2))};
}
NDArray data_of(std::size_t network) {
  return network == 0 ? NDArray::full({2, 1, 5, 5}, 0.5) : NDArray::full({2, 3, 4}, 0.5);
}

// Vectors are biases, scales and shifts; all else is a weight.
TEST(Multipliers, LeaveBiasesAndNormsWithoutDecay) {
  for (const Spec& optimizer :
       {Spec(optim::SGD{.lr = 0.5, .weight_decay = 0.5, .decay_mult = optim::no_decay_on_biases_and_norms()}),
        Spec(optim::AdamW{.lr = 0.5, .weight_decay = 0.5, .decay_mult = optim::no_decay_on_biases_and_norms()})}) {
    for (std::size_t n = 0; n < networks().size(); ++n) {
      const nn::Module net = networks()[n];
      EXPECT_THAT(step(net, data_of(n), optimizer), Not(HasSubstr("decay_mult")));
      int weights = 0, vectors = 0;
      for (const auto& parameter : net.parameters()) {
        if (parameter->statistic) continue;
        const bool is_vector = parameter->value.ndim() == 1;
        ++(is_vector ? vectors : weights);
        for (const float value : parameter->value.to_vector<float>())
          ASSERT_EQ(value, is_vector ? 1 : 0.75) << optimizer.name << ' ' << parameter->name;
      }
      EXPECT_GE(weights, 2);
      EXPECT_GE(vectors, 4);
    }
  }
}

TEST(Multipliers, OfNoParameterAreNamedInTheLog) {
  const std::string log =
      step(networks()[0], data_of(0), Spec::parse("sgd:lr=0.1,lr_mult=0.*:2+embeding*:0.1,decay_mult=*bias*:0"));
  EXPECT_THAT(log, HasSubstr("lr_mult=embeding* of the optimizer fits no parameter of the network"));
  EXPECT_THAT(log, Not(HasSubstr("lr_mult=0.*")));
  EXPECT_THAT(log, Not(HasSubstr("decay_mult")));
}

}  // namespace
}  // namespace paceline
