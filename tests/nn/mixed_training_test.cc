// Training in bfloat16 and float16, and loss scaling.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <support/cluster_in_process.h>

#include <cmath>
#include <filesystem>

#include "loss_scale.h"

namespace paceline {
namespace {

using nn::LossScale;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr DType kHalves[] = {DType::kBfloat16, DType::kFloat16};

TEST(LossScale, GrowsAfterGoodStepsAndIsHalvedByABadOne) {
  LossScale scale;
  EXPECT_EQ(scale.value(), 65536);
  for (int i = 1; i < LossScale::kGrowAfter; ++i) EXPECT_TRUE(scale.update(true));
  EXPECT_EQ(scale.value(), 65536);
  scale.update(true);
  EXPECT_EQ(scale.value(), 131072);
  EXPECT_EQ(scale.good_steps(), 0);
  scale.update(true);
  EXPECT_FALSE(scale.update(false));
  EXPECT_EQ(scale.value(), 65536);
  EXPECT_EQ(scale.good_steps(), 0);
  for (int i = 0; i < 16; ++i) scale.update(false);
  EXPECT_EQ(scale.value(), 1);
  EXPECT_THROW(scale.update(false), Error);
}

TEST(LossScale, IsAText) {
  for (const std::int64_t value : {1, 2, 65536})
    for (const std::int64_t steps : {0, 7, 1999}) {
      const auto again = LossScale::parse(LossScale::of(value, steps)->text());
      ASSERT_TRUE(again);
      EXPECT_EQ(again->value(), value);
      EXPECT_EQ(again->good_steps(), steps);
    }
  for (const std::int64_t value : {-1, 0, 3, 65535}) EXPECT_FALSE(LossScale::of(value, 0));
  EXPECT_FALSE(LossScale::of(2, LossScale::kGrowAfter));
  for (const char* text : {"", "65536", "3 0", "2 2000", "x 1"}) EXPECT_FALSE(LossScale::parse(text)) << text;
}

struct Points {
  NDArray data, label;
  explicit Points(std::int64_t count, std::int64_t spoilt = -1) {
    std::vector<float> x;
    std::vector<std::int32_t> y;
    for (std::int64_t i = 0; i < count; ++i) {
      const float noise = static_cast<float>((i * 7919) % 101) / 101 - 0.5f;
      x.push_back((i % 2 == 1 ? 1.0f : -1.0f) + noise);
      x.push_back(i == spoilt ? 1e6f : noise);  // too much for float16
      y.push_back(i % 2 == 1);
    }
    data = NDArray::from(x, {count, 2});
    label = NDArray::from(y, {count});
  }
  Batch batch() const {
    Batch batch;
    batch.data = data;
    batch.label = label;
    batch.examples = data.size(0);
    return batch;
  }
};

nn::Module classifier() { return nn::Sequential(nn::Dense(8), nn::BatchNorm(), nn::Tanh(), nn::Dense(2)); }

std::vector<float> all_of(const nn::Trainer& trainer) {
  std::vector<float> all;
  for (const auto& parameter : trainer.net().parameters())
    for (const float value : parameter->value.to_vector<float>()) all.push_back(value);
  return all;
}

// Of all_of(): the running mean and variance, which follow what the workers saw.
bool is_statistic(std::size_t place) { return place >= 40 && place < 56; }

// The loss of each step, then the weights.
std::vector<float> trained(const nn::TrainerOptions& options, int steps = 30) {
  const Points points(60);
  nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.1, .momentum = 0.9}, KVStore::create("local"), options);
  std::vector<float> result;
  for (int i = 0; i < steps; ++i) result.push_back(trainer.step(points.batch(), nn::softmax_ce).item<float>());
  for (const float value : all_of(trainer)) result.push_back(value);
  return result;
}

TEST(MixedTraining, TrainsAsFloat32DoesEagerAndCaptured) {
  const auto wanted = trained({.seed = 3});
  for (const DType half : kHalves) {
    SCOPED_TRACE(name_of(half));
    const auto found = trained({.seed = 3, .precision = half});
    ASSERT_EQ(found.size(), wanted.size());
    EXPECT_NE(found, wanted);
    for (int i = 0; i < 30; ++i)
      EXPECT_NEAR(found[static_cast<std::size_t>(i)], wanted[static_cast<std::size_t>(i)], 0.02);
    EXPECT_EQ(trained({.seed = 3, .precision = half, .captured = true}), found);
  }
  EXPECT_THROW(trained({.precision = DType::kFloat64}), InvalidArgument);
}

// The scale is a power of two, so what is clipped are the gradients themselves.
TEST(MixedTraining, ClipsWhatIsNotScaled) {
  const auto first = [](DType precision, double clip) {
    const Points points(60);
    nn::Trainer trainer(classifier(), optim::SGD{.lr = 1}, KVStore::create("local"),
                        {.seed = 3, .precision = precision, .clip_norm = clip});
    trainer.net().initialize({60, 2}, 3);
    const auto before = all_of(trainer);
    trainer.step(points.batch(), nn::softmax_ce);
    trainer.synchronize();
    double moved = 0;
    const auto after = all_of(trainer);
    for (std::size_t i = 0; i < after.size(); ++i)
      if (!is_statistic(i)) moved += std::pow(after[i] - before[i], 2);
    return std::sqrt(moved);
  };
  for (const DType half : kHalves) {
    EXPECT_NEAR(first(half, 0), first(DType::kFloat32, 0), 0.01);
    EXPECT_NEAR(first(half, 0.01), 0.01, 1e-5);
  }
}

class LossScaling : public testing::Test {
 protected:
  std::string directory =
      testing::TempDir() + "paceline_precision_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  void SetUp() override { std::filesystem::remove_all(directory); }
  void TearDown() override { std::filesystem::remove_all(directory); }
};

TEST_F(LossScaling, LeavesOutAStepThatOverflowsAndGoesOn) {
  const Points good(20), bad(20, 7);
  for (const bool captured : {false, true}) {
    nn::Trainer trainer(classifier(), Spec::parse("momentum:lr=0.1,momentum=0.9"), KVStore::create("local"),
                        {.precision = DType::kFloat16, .captured = captured});
    EXPECT_EQ(trainer.loss_scale(), 65536);
    for (int i = 0; i < 3; ++i) trainer.step(good.batch(), nn::softmax_ce);
    trainer.synchronize();
    EXPECT_EQ(trainer.loss_scale(), 65536);
    const auto before = all_of(trainer);
    trainer.step(bad.batch(), nn::softmax_ce);
    EXPECT_EQ(trainer.loss_scale(), 32768);
    trainer.synchronize();
    EXPECT_EQ(all_of(trainer), before);
    trainer.step(good.batch(), nn::softmax_ce);
    trainer.synchronize();
    EXPECT_NE(all_of(trainer), before);
    EXPECT_EQ(trainer.loss_scale(), 32768);
    const nn::TrainerReport report = trainer.report();
    EXPECT_EQ(report.steps, 5);
    EXPECT_EQ(report.left_out, 1);
    EXPECT_EQ(report.examples, 80);
    EXPECT_TRUE(std::isfinite(report.loss));
  }
}

TEST_F(LossScaling, EndsWhereNoScaleWillDo) {
  const Points bad(20, 7);
  nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.1}, KVStore::create("local"), {.precision = DType::kFloat16});
  EXPECT_THAT(
      [&] {
        for (int i = 0; i < 20; ++i) trainer.step(bad.batch(), nn::softmax_ce);
      },
      ThrowsMessage<Error>(HasSubstr("gradients are not finite in float16")));
  EXPECT_EQ(trainer.loss_scale(), 1);
}

TEST_F(LossScaling, SurvivesACheckpointWhichFitsAnyPrecision) {
  const Points good(20), bad(20, 7);
  const auto trainer = [](DType precision) {
    return std::make_unique<nn::Trainer>(classifier(), optim::SGD{.lr = 0.1, .momentum = 0.9}, KVStore::create("local"),
                                         nn::TrainerOptions{.precision = precision});
  };
  std::vector<float> straight;
  {
    const auto first = trainer(DType::kFloat16);
    for (const Points* points : {&good, &bad, &bad, &good}) first->step(points->batch(), nn::softmax_ce);
    first->checkpoint(directory);
    EXPECT_EQ(first->loss_scale(), 16384);
    first->step(good.batch(), nn::softmax_ce);
    first->synchronize();
    straight = all_of(*first);
  }
  for (const DType precision : {DType::kFloat16, DType::kFloat32, DType::kBfloat16}) {
    SCOPED_TRACE(name_of(precision));
    const auto again = trainer(precision);
    ASSERT_TRUE(again->resume_if_present(directory));
    EXPECT_EQ(again->loss_scale(), precision == DType::kFloat16 ? 16384 : 1);
    again->step(good.batch(), nn::softmax_ce);
    again->synchronize();
    const auto weights = all_of(*again);
    ASSERT_EQ(weights.size(), straight.size());
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(weights[i], straight[i], precision == DType::kFloat16 ? 0 : 0.02);
    if (precision != DType::kFloat32) continue;
    again->checkpoint(directory + "/plain");
  }
  const auto fresh = trainer(DType::kFloat16);
  ASSERT_TRUE(fresh->resume_if_present(directory + "/plain"));
  EXPECT_EQ(fresh->loss_scale(), 65536);
}

TEST_F(LossScaling, RefusesACheckpointWithAnImpossibleScale) {
  const Points good(20);
  nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.1}, KVStore::create("local"), {.precision = DType::kFloat16});
  trainer.step(good.batch(), nn::softmax_ce);
  const std::string path = trainer.checkpoint(directory);
  std::vector<std::pair<std::string, std::string>> metadata;
  const NamedArrays arrays = load_safetensors(path, &metadata);
  for (auto& [name, value] : metadata)
    if (name == "loss_scale") value = "65537";
  save_safetensors(path, arrays, metadata);
  nn::Trainer again(classifier(), optim::SGD{.lr = 0.1}, KVStore::create("local"), {.precision = DType::kFloat16});
  EXPECT_THAT([&] { again.resume_if_present(directory); }, ThrowsMessage<Corrupt>(HasSubstr("loss_scale=65537")));
}

// Of two workers, one or both overflow in the second of three steps. The others' round is made without them, and all
// hold the same weights: those of one process that makes the steps of all whose gradients count.
TEST_F(LossScaling, AWorkerThatOverflowsHasNoPartInTheRound) {
  const Points good(20), bad(20, 7);
  const auto options = nn::TrainerOptions{.seed = 2, .precision = DType::kFloat16};
  for (const int overflowing : {1, 2}) {
    nn::Trainer alone(classifier(), optim::SGD{.lr = 0.1, .momentum = 0.9}, KVStore::create("local"), options);
    for (int i = 0; i < 4 - overflowing; ++i) alone.step(good.batch(), nn::softmax_ce);
    alone.synchronize();
    const auto wanted = all_of(alone);
    for (const std::string mode : {"dist_sync", "ring", "dist_async", "dist_local:steps=1"}) {
      SCOPED_TRACE(str(mode, ", workers that overflow: ", overflowing));
      test::ClusterInProcess cluster({.mode = mode, .servers = mode == "ring" ? 0 : 1, .engine = &default_engine()});
      std::vector<std::vector<float>> weights(2);
      std::vector<double> scales(2);
      cluster.run([&](int, KVStore& store) {
        const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
        const auto rank = static_cast<std::size_t>(store.rank());
        nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.1, .momentum = 0.9}, kv, options);
        for (int i = 0; i < 3; ++i)
          trainer.step((i == 1 && store.rank() >= 2 - overflowing ? bad : good).batch(), nn::softmax_ce);
        trainer.synchronize();
        weights[rank] = all_of(trainer);
        scales[rank] = trainer.loss_scale();
      });
      EXPECT_EQ(scales, (std::vector<double>{overflowing == 2 ? 32768.0 : 65536.0, 32768}));
      for (const float weight : weights[0]) EXPECT_TRUE(std::isfinite(weight));
      EXPECT_EQ(weights[0], weights[1]);
      ASSERT_EQ(weights[0].size(), wanted.size());
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if ((mode == "dist_sync" || mode == "ring") && !is_statistic(i)) {
          EXPECT_NEAR(weights[0][i], wanted[i], 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace paceline
