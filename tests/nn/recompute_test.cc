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

// Rows that others write meanwhile: the gradient is of those that the output was made of.
TEST(Recompute, RowsAreTakenOnce) {
  const NDArray words = NDArray::from(std::vector<std::int32_t>{4, 1, 1, 0}, {2, 2});
  const auto gradient = [&](bool recompute) {
    const nn::Module body = nn::Sequential(nn::Embedding(5, 3, {.sparse_grad = true}), nn::Tanh());
    nn::Module net = nn::Sequential(body, nn::Flatten());
    // One inside the other, too.
    if (recompute) net = nn::Recompute(nn::Sequential(nn::Recompute(body), nn::Flatten()));
    net.initialize(words.shape(), 3);
    int calls = 0;
    const auto rows = std::make_shared<const nn::RowSource>(
        [&calls](const nn::Parameter&, const NDArray&, const NDArray& out) { out.fill(++calls * 0.25); });
    const NDArray weight = net.parameters()[0]->value;
    Tape tape;
    tape.watch_sparse(weight);
    tape.backward(sum(square(net(words, {.training = true, .rows = rows}))));
    EXPECT_EQ(calls, 1);
    return tape.sparse_gradient(weight).sparse.values.to_vector<float>();
  };
  EXPECT_EQ(gradient(true), gradient(false));
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
