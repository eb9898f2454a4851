#include <gtest/gtest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>

#include <cmath>
#include <limits>

namespace paceline {
namespace {

using Values = std::vector<double>;

NDArray array(const Values& values, Device device = {}) {
  return NDArray::from(values, {static_cast<std::int64_t>(values.size())}).to(device);
}

TEST(ClipGlobalNorm, ScalesAllByTheirCommonNorm) {
  const std::vector<NDArray> gradients{array({3, 0}), array({0, 0, -12}, Device("cpu:1")), array({4})};
  EXPECT_DOUBLE_EQ(clip_global_norm(gradients, 6.5).item<double>(), 13);
  const double factor = 6.5 / (13 + 1e-6);
  EXPECT_EQ(gradients[0].to_vector<double>(), (Values{3 * factor, 0}));
  EXPECT_EQ(gradients[1].to_vector<double>(), (Values{0, 0, -12 * factor}));
  EXPECT_EQ(gradients[2].to_vector<double>(), (Values{4 * factor}));
}

TEST(ClipGlobalNorm, LeavesWhatIsShortEnoughAndTakesViews) {
  const NDArray whole = array({1, 2, 3, 4});
  EXPECT_DOUBLE_EQ(clip_global_norm({whole.narrow(0, 0, 2)}, 3).item<double>(), std::sqrt(5.0));
  EXPECT_EQ(whole.to_vector<double>(), (Values{1, 2, 3, 4}));
  clip_global_norm({whole.narrow(0, 2, 4)}, 1);
  const Values clipped = whole.to_vector<double>();
  EXPECT_EQ(clipped[1], 2);
  EXPECT_NEAR(std::hypot(clipped[2], clipped[3]), 1, 1e-6);
}

TEST(ClipGlobalNorm, ShowsWhatIsNotFinite) {
  const NDArray gradient = array({1, std::numeric_limits<double>::quiet_NaN()});
  EXPECT_TRUE(std::isnan(clip_global_norm({gradient}, 1).item<double>()));
  EXPECT_TRUE(std::isnan(gradient.to_vector<double>()[0]));
  EXPECT_THROW(clip_global_norm({}, 1), InvalidArgument);
  EXPECT_THROW(clip_global_norm({gradient}, 0), InvalidArgument);
}

// A step of plain SGD goes as far as the learning rate times the norm. The four examples contradict each other, so that
// gradients stay long.
TEST(ClipGlobalNorm, BoundsAStepOfTheTrainer) {
  const NDArray data = NDArray::from(Values{50, -20, 50, -20, 50, -20, 50, -20}, {4, 2}),
                label = NDArray::from(std::vector<int>{0, 0, 0, 1}, {4});
  for (const bool captured : {false, true}) {
    auto kv = KVStore::create("local");
    MemoryIterator batches(data, label, {.batch = 4, .source = nn::shared_source(kv)});
    nn::Trainer trainer(nn::Sequential(nn::Dense(4), nn::Dense(2)), optim::SGD{.lr = 1e-3}, kv,
                        {.clip_norm = 0.25, .captured = captured});
    Values before;
    const auto weights = [&] {
      Values all;
      for (const auto& parameter : trainer.net().parameters())
        for (const double value : parameter->value.to_vector<double>()) all.push_back(value);
      return all;
    };
    while (trainer.epoch() < 3) {
      for (Batch& batch : trainer.epoch_of(batches)) trainer.step(batch, nn::softmax_ce);
      trainer.synchronize();
      const Values after = weights();
      double squares = 0;
      for (std::size_t i = 0; i < before.size(); ++i) squares += std::pow(after[i] - before[i], 2);
      if (!before.empty()) {
        EXPECT_NEAR(std::sqrt(squares), 1e-3 * 0.25, 1e-7) << "captured " << captured;
      }
      before = after;
    }
    EXPECT_THROW(nn::Trainer(trainer.net(), optim::SGD{}, kv, {.clip_norm = -1}), InvalidArgument);
  }
}

}  // namespace
}  // namespace paceline
