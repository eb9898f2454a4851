// A network trains to the serial engine's bits in whatever legal order its tasks run.

#include <paceline/detail/shuffled_engine.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <paceline/random.h>

#include <gtest/gtest.h>

#include <random>

namespace paceline {
namespace {

// Three steps of two layers with momentum; everything but the sums of gradients may run beside something else.
std::vector<float> train(Engine& engine) {
  const auto random = [&](const Shape& shape, std::uint64_t seed) {
    const NDArray array(shape, DType::kFloat32, {}, engine);
    kernels::fill_normal(array, 0, 0.5, seed);
    return array;
  };
  const NDArray data = random({6, 5}, 1);
  const NDArray labels = NDArray::from<std::int32_t>({0, 1, 2, 0, 1, 2}, {6}, {}, engine);
  const std::vector<NDArray> weights{random({4, 5}, 2), random({4}, 3), random({3, 4}, 4), random({3}, 5)};
  std::vector<NDArray> gradients, momenta;
  for (const NDArray& weight : weights) {
    gradients.emplace_back(weight.shape(), DType::kFloat32, Device(), engine);
    momenta.push_back(NDArray::zeros(weight.shape(), DType::kFloat32, {}, engine));
  }
  for (int step = 0; step < 3; ++step) {
    Tape tape;
    for (std::size_t i = 0; i < weights.size(); ++i) tape.watch(weights[i], gradients[i]);
    const NDArray hidden = tanh(dense(data, weights[0], weights[1]));
    tape.backward(softmax_cross_entropy(dense(hidden, weights[2], weights[3]), labels));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      kernels::scale(0.9, momenta[i]);
      kernels::axpy(1, gradients[i], momenta[i]);
      kernels::axpy(-0.1, momenta[i], weights[i]);
    }
  }
  std::vector<float> all;
  for (const NDArray& weight : weights)
    for (const float value : weight.to_vector<float>()) all.push_back(value);
  return all;
}

TEST(ScheduleTest, ATrainingHasTheSerialEnginesResultInAnyOrder) {
  constexpr int kEngines = 20, kTrainings = 50;
  const std::vector<float> expected = train(*make_serial_engine());
  const std::uint64_t first_seed = std::random_device{}() | 1u;
  for (int i = 0; i < kEngines; ++i) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(i);
    const auto engine = detail::make_shuffled_engine({.cpu_lanes = 2}, seed);
    for (int k = 0; k < kTrainings; ++k)
      ASSERT_EQ(train(*engine), expected) << "schedule seed " << seed << ", training " << k;
  }
}

}  // namespace
}  // namespace paceline
