#include <gtest/gtest.h>
#include <paceline/autograd.h>
#include <paceline/capture.h>
#include <paceline/kernel.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

#include <optional>

namespace paceline {
namespace {

NDArray numbers(const Shape& shape, std::uint64_t seed) {
  const NDArray x(shape);
  kernels::fill_normal(x, 0, 1, seed);
  return x;
}

nn::Module block(bool recompute, std::int64_t width) {
  const nn::Module body = nn::Sequential(nn::Dense(width), nn::BatchNorm(), nn::Tanh(), nn::Dropout(0.4),
                                         nn::Dense(width), nn::Gelu(), nn::Dense(width));
  return recompute ? nn::Recompute(body) : body;
}

struct Result {
  std::vector<std::vector<float>> values;  // loss, gradient of x, then weights' gradients and statistics
  CapturePlan plan;
};

Result run(bool recompute) {
  const nn::Module net = nn::Sequential(block(recompute, 64), block(recompute, 64), block(recompute, 64), nn::Dense(3));
  net.initialize({40, 16}, 3);
  const NDArray x = numbers({40, 16}, 1), gradient(x.shape());
  Captured step([&](const std::vector<NDArray>& in) {
    Tape tape;
    tape.watch(in[0], gradient);
    for (const auto& parameter : net.parameters())
      if (!parameter->statistic) tape.watch(parameter->value, parameter->gradient);
    const NDArray y = net(in[0], {.training = true, .seed = 9, .call = in[1]});
    const NDArray loss = mean(y * y);
    tape.backward(loss);
    return std::vector{loss};
  });
  Result result;
  for (int call = 0; call < 3; ++call) {
    const NDArray loss = step({x, NDArray::full({1}, call, DType::kInt64)})[0];
    result.values.push_back(loss.to_vector<float>());
    result.values.push_back(gradient.to_vector<float>());
    for (const auto& parameter : net.parameters())
      result.values.push_back((parameter->statistic ? parameter->value : parameter->gradient).to_vector<float>());
  }
  result.plan = step.plan();
  return result;
}

TEST(Recompute, GivesTheSameGradientsWithLessMemory) {
  const Result kept = run(false), again = run(true);
  EXPECT_EQ(kept.values, again.values);
  EXPECT_GT(again.plan.kernels, kept.plan.kernels);
  EXPECT_LT(again.plan.planned_bytes * 3, kept.plan.planned_bytes * 2);
}

// A layer at two places; and the module may be gone before backward().
TEST(Recompute, ALayerUsedTwiceHasOneGradient) {
  const NDArray x = numbers({3, 4}, 1);
  const auto gradients = [&](bool recompute) {
    const nn::Module layer = nn::Dense(4);
    std::optional<nn::Module> net = nn::Sequential(layer, nn::Tanh(), layer);
    if (recompute) net = nn::Recompute(*net);
    net->initialize(x.shape(), 3);
    const auto parameters = net->parameters();
    Tape tape;
    for (const auto& parameter : parameters) tape.watch(parameter->value, parameter->gradient);
    const NDArray y = (*net)(x, {.training = true});
    net.reset();
    tape.backward(sum(y * y));
    return std::pair(parameters[0]->gradient.to_vector<float>(), parameters[1]->gradient.to_vector<float>());
  };
  EXPECT_EQ(gradients(false), gradients(true));
}

TEST(Recompute, IsItsBodyWhereNothingIsRecorded) {
  const nn::Module net = nn::Recompute(nn::Sequential(nn::Dense(4), nn::Tanh()));
  const NDArray x = numbers({2, 3}, 1);
  const auto first = net(x).to_vector<float>();
  EXPECT_EQ(net(x).to_vector<float>(), first);
  EXPECT_EQ(net.parameters()[0]->name, "body.0.weight");
}

}  // namespace
}  // namespace paceline
