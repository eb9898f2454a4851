#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/image.h>
#include <paceline/manifest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <paceline/random.h>
#include <paceline/record_loader.h>
#include <support/paths.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace paceline {
namespace {

using test::source_dir;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Two clouds of points, learnable by a line.
struct Clouds {
  NDArray data, label;
  explicit Clouds(std::int64_t count) {
    std::vector<float> x;
    std::vector<std::int32_t> y;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool right = i % 2 == 1;
      const float noise = static_cast<float>((i * 7919) % 101) / 101 - 0.5f;
      x.push_back((right ? 1.0f : -1.0f) + noise);
      x.push_back(noise * (i % 3 == 0 ? 1.0f : -1.0f));
      y.push_back(right);
    }
    data = NDArray::from(x, {count, 2});
    label = NDArray::from(y, {count});
  }
};

nn::Module classifier() { return nn::Sequential(nn::Dense(8), nn::Tanh(), nn::Dense(2)); }

class TrainerTest : public testing::Test {
 protected:
  std::string directory =
      testing::TempDir() + "paceline_trainer_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  void SetUp() override { std::filesystem::remove_all(directory); }
  void TearDown() override { std::filesystem::remove_all(directory); }
};

// Trains until `epochs`, from the checkpoint in `directory` where there is one, and returns all weights.
std::vector<float> train(const std::string& directory, int epochs, const std::string& optimizer = "nesterov:lr=0.1",
                         const nn::Module& net = classifier()) {
  const Clouds clouds(100);
  auto kv = KVStore::create("local");
  MemoryIterator data(clouds.data, clouds.label, {.batch = 16, .shuffle = 3, .source = nn::shared_source(kv)});
  nn::Trainer trainer(net, Spec::parse(optimizer), kv, {.seed = 4});
  trainer.resume_if_present(directory);
  while (trainer.epoch() < epochs) {
    for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
    trainer.checkpoint(directory);
  }
  std::vector<float> weights;
  for (const auto& parameter : trainer.net().parameters())
    for (const float value : parameter->value.to_vector<float>()) weights.push_back(value);
  return weights;
}

TEST_F(TrainerTest, OnCudaFollowsTheCpu) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  const auto network = [](Device device) {
    return nn::Sequential(nn::Dense(8), nn::BatchNorm(), nn::Relu(), nn::Dropout(0.2), nn::Dense(2)).to(device);
  };
  const std::vector<float> expected = train(directory + "/cpu", 2, "nesterov:lr=0.05", network(Device()));
  const std::vector<float> actual = train(directory + "/cuda", 2, "nesterov:lr=0.05", network(Device("cuda:0")));
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-4) << i;
}

TEST_F(TrainerTest, Learns) {
  const Clouds clouds(200);
  auto kv = KVStore::create("local");
  MemoryIterator data(clouds.data, clouds.label, {.batch = 20, .shuffle = 1, .source = nn::shared_source(kv)});
  nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.2, .momentum = 0.9}, kv);
  std::int64_t examples = 0;
  while (trainer.epoch() < 5)
    for (Batch& batch : trainer.epoch_of(data)) {
      trainer.step(batch, nn::softmax_ce);
      examples += batch.examples;
    }
  trainer.synchronize();
  EXPECT_EQ(examples, 1000);
  EXPECT_EQ(trainer.report().examples, 1000);
  MemoryIterator test(clouds.data, clouds.label, {.batch = 64});
  EXPECT_GE(nn::evaluate(trainer.net(), test), 0.99);
}

// The gradient of a mean over 16 examples is that of parts of 5, 5 and 6, weighted; captured likewise.
TEST_F(TrainerTest, MicroBatchesAddUpToTheBatch) {
  const auto weights = [](int micro_batches, bool captured) {
    const Clouds clouds(64);
    auto kv = KVStore::create("local");
    MemoryIterator data(clouds.data, clouds.label, {.batch = 16, .source = nn::shared_source(kv)});
    nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.2, .momentum = 0.9}, kv,
                        {.seed = 4, .micro_batches = micro_batches, .captured = captured});
    double loss = 0;
    while (trainer.epoch() < 3)
      for (Batch& batch : trainer.epoch_of(data)) loss = trainer.step(batch, nn::softmax_ce).item<float>();
    trainer.synchronize();
    std::vector<float> all{static_cast<float>(loss)};
    for (const auto& parameter : trainer.net().parameters())
      for (const float value : parameter->value.to_vector<float>()) all.push_back(value);
    return all;
  };
  const auto whole = weights(1, false), parts = weights(3, false);
  ASSERT_EQ(whole.size(), parts.size());
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], parts[i], 2e-6);
  EXPECT_NE(whole, parts);
  EXPECT_EQ(parts, weights(3, true));
  auto kv = KVStore::create("local");
  EXPECT_THROW(nn::Trainer(classifier(), optim::SGD{}, kv, {.micro_batches = 0}), InvalidArgument);
}

TEST_F(TrainerTest, EvaluationNeedsWeightsAndASharedSource) {
  const Clouds clouds(64);
  auto kv = KVStore::create("local");
  MemoryIterator data(clouds.data, clouds.label, {.batch = 16, .source = nn::shared_source(kv)});
  MemoryIterator other(clouds.data, clouds.label, {.batch = 16});
  nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.2}, kv);
  EXPECT_THROW(trainer.evaluate(data), InvalidArgument);
  for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
  EXPECT_THROW(trainer.evaluate(other), InvalidArgument);
  MemoryIterator all(clouds.data, clouds.label, {.batch = 64});
  const double expected = nn::evaluate(trainer.net(), all);
  for (int i = 0; i < 70; ++i) EXPECT_EQ(trainer.evaluate(data), expected);
  for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
  EXPECT_EQ(trainer.evaluate(data), nn::evaluate(trainer.net(), all));
}

TEST_F(TrainerTest, EvaluationLeavesOutWhatIsDamaged) {
  DatasetWriter writer(directory + "/half", 1);
  for (int i = 0; i < 20; ++i) {
    const float label = 0;
    writer.write(0, i, pack_image_record({&label, 1}, 0, i % 2 == 0 || i > 16 ? "no image" : "P5 1 1 255\nx"));
  }
  Manifest manifest;
  manifest.encoding = "raw";
  manifest.image = {1, 1, 1};
  manifest.class_labels = true;
  auto kv = KVStore::create("local");
  RecordLoader data(writer.finish(manifest),
                    {.batch = 3, .source = nn::shared_source(kv), .on_damage = OnDamage::kSkip});
  nn::Trainer trainer(nn::Sequential(nn::Flatten(), nn::Dense(2)), optim::SGD{.lr = 0.1}, kv);
  for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
  EXPECT_EQ(trainer.evaluate(data, nn::softmax_ce).examples, 8);
}

TEST_F(TrainerTest, AnEpochThatIsLeftEarlyGoesOnBehindWhatWasDelivered) {
  const Clouds clouds(100);
  auto kv = KVStore::create("local");
  nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.1}, kv);
  std::multiset<std::int64_t> delivered;
  const auto train_on = [&](const Batch& batch) {
    trainer.step(batch, nn::softmax_ce);
    for (const Range& range : batch.positions)
      for (std::int64_t position = range.begin; position < range.end; ++position) delivered.insert(position);
  };
  {
    MemoryIterator data(clouds.data, clouds.label, {.batch = 16, .shuffle = 3, .source = nn::shared_source(kv)});
    for (Batch& batch : trainer.epoch_of(data)) {
      train_on(batch);
      if (delivered.size() >= 48) break;
    }
  }
  EXPECT_EQ(trainer.epoch(), 0);
  MemoryIterator rest(clouds.data, clouds.label, {.batch = 16, .shuffle = 3, .source = nn::shared_source(kv)});
  for (Batch& batch : trainer.epoch_of(rest)) train_on(batch);
  EXPECT_EQ(trainer.epoch(), 1);
  EXPECT_EQ(delivered.size(), 100u);
  EXPECT_EQ(std::set<std::int64_t>(delivered.begin(), delivered.end()).size(), 100u);
}

TEST_F(TrainerTest, ResumesWithTheSameNumbers) {
  const std::vector<float> whole = train(directory, 4);
  std::filesystem::remove_all(directory);
  train(directory, 2);
  EXPECT_EQ(train(directory, 4), whole);
}

TEST_F(TrainerTest, DropoutGoesOnFromTheCheckpointsStep) {
  const auto run = [&](int epochs) {
    return train(directory, epochs, "nesterov:lr=0.1",
                 nn::Sequential(nn::Dense(8), nn::Tanh(), nn::Dropout(0.5), nn::Dense(2)));
  };
  const std::vector<float> whole = run(4);
  std::filesystem::remove_all(directory);
  run(2);
  EXPECT_EQ(run(4), whole);
}

TEST_F(TrainerTest, AdamStateIsInTheCheckpoint) {
  const std::vector<float> whole = train(directory, 3, "adam:lr=0.05");
  std::filesystem::remove_all(directory);
  train(directory, 1, "adam:lr=0.05");
  EXPECT_EQ(train(directory, 3, "adam:lr=0.05"), whole);
}

// Neither a loop of one's own nor an iterator without shared_source() tells the store a position.
TEST_F(TrainerTest, ResumesWhatWasTrainedWithoutPositions) {
  const Clouds clouds(100);
  Batch batch;
  batch.data = clouds.data, batch.label = clouds.label, batch.examples = 100;
  std::vector<float> trained;
  {
    auto kv = KVStore::create("local");
    nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.1}, kv);
    EXPECT_FALSE(trainer.resume_if_present(directory));
    for (int i = 0; i < 3; ++i) trainer.step(batch, nn::softmax_ce);
    trainer.checkpoint(directory);
    trained = trainer.net().parameters()[0]->value.to_vector<float>();
  }
  auto kv = KVStore::create("local");
  nn::Trainer trainer(classifier(), optim::SGD{.lr = 0}, kv, {.seed = 7});
  EXPECT_TRUE(trainer.resume_if_present(directory));
  EXPECT_EQ(trainer.epoch(), 0);
  trainer.step(batch, nn::softmax_ce);
  trainer.synchronize();
  EXPECT_EQ(trainer.net().parameters()[0]->value.to_vector<float>(), trained);
}

TEST_F(TrainerTest, ASecondTrainerOfAStoreWritesCheckpointsOfItsOwn) {
  const Clouds clouds(100);
  Batch batch;
  batch.data = clouds.data, batch.label = clouds.label, batch.examples = 100;
  auto kv = KVStore::create("local");
  nn::Trainer first(classifier(), optim::SGD{.lr = 0.1}, kv);
  first.step(batch, nn::softmax_ce);
  for (int i = 0; i < 2; ++i) first.checkpoint(directory + "/first");
  nn::Trainer second(nn::Sequential(nn::Tanh(), nn::Dense(2)), optim::SGD{.lr = 0.1}, kv);
  EXPECT_FALSE(second.resume_if_present(directory + "/second"));
  second.step(batch, nn::softmax_ce);
  EXPECT_TRUE(std::filesystem::exists(second.checkpoint(directory + "/second")));
}

TEST_F(TrainerTest, WeightsOfACheckpointLoadIntoANetwork) {
  const std::vector<float> weights = train(directory, 1);
  const nn::Module net = classifier();
  net.initialize({1, 2}, 99);
  nn::load_weights(net, directory + "/checkpoint.safetensors");
  std::vector<float> loaded;
  for (const auto& parameter : net.parameters())
    for (const float value : parameter->value.to_vector<float>()) loaded.push_back(value);
  EXPECT_EQ(loaded, weights);

  const nn::Module again = classifier();
  again.initialize({1, 2}, 98);
  nn::load_weights(again, directory);
  EXPECT_EQ(again.parameters()[0]->value.to_vector<float>(), net.parameters()[0]->value.to_vector<float>());

  const nn::Module wider = nn::Sequential(nn::Dense(9), nn::Tanh(), nn::Dense(2));
  wider.initialize({1, 2}, 1);
  try {
    nn::load_weights(wider, directory + "/checkpoint.safetensors");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("it has other shapes for '0.weight (8, 2) instead of (9, 2)'"));
  }
}

TEST_F(TrainerTest, RefusesACheckpointOfAnotherOptimizer) {
  train(directory, 1, "nesterov:lr=0.1");
  EXPECT_THROW(train(directory, 2, "adam:lr=0.1"), InvalidArgument);
}

TEST_F(TrainerTest, RefusesACheckpointOfALargerNetwork) {
  train(directory, 1);
  EXPECT_THAT([&] { train(directory, 2, "nesterov:lr=0.1", nn::Sequential(nn::Dense(8))); },
              ThrowsMessage<InvalidArgument>(HasSubstr("another network: the network lacks '2.bias', '2.weight'")));
}

TEST_F(TrainerTest, RefusesAFinishedCheckpointOfAnotherNetworkWithoutAStep) {
  train(directory, 1);
  const auto refusal = [&](const nn::Module& net) {
    try {
      train(directory, 1, "nesterov:lr=0.1", net);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(refusal(nn::Sequential(nn::Dense(9), nn::Tanh(), nn::Dense(2))),
              HasSubstr("is of another network: it has other shapes for '0.weight (8, 2) instead of (9, 2)'"));
  EXPECT_THAT(refusal(nn::Sequential(nn::Conv2d(3, 2), nn::Dense(2))),
              HasSubstr("is of another network: its inputs were of shape (16, 2), which this network does not take: "));
  EXPECT_EQ(refusal(classifier()), "nothing was thrown");
}

TEST_F(TrainerTest, ResumingGivesTheNetworkTheCheckpointsWeightsAtOnce) {
  const std::vector<float> weights = train(directory, 1);
  EXPECT_EQ(train(directory, 1), weights);
}

// Made as 2b3d800 wrote files, after one epoch of train(): without checksums, without the shape of the inputs.
TEST_F(TrainerTest, ResumesACheckpointOfAnEarlierVersion) {
  const std::string earlier = source_dir() + "/tests/nn/checkpoint_of_2b3d800.safetensors";
  std::filesystem::create_directories(directory);
  std::filesystem::copy_file(earlier, nn::checkpoint_path(directory));
  const std::vector<float> continued = train(directory, 3), anew = train(directory + "/anew", 3);
  ASSERT_EQ(continued.size(), anew.size());
  for (std::size_t i = 0; i < anew.size(); ++i) EXPECT_NEAR(continued[i], anew[i], 1e-5);
  const nn::Module net = classifier();
  net.initialize({1, 2}, 99);
  EXPECT_TRUE(nn::load_weights(net, earlier).missing.empty());
  net.load(source_dir() + "/tests/nn/weights_of_2b3d800.params");
  EXPECT_TRUE(nn::checkpoint_notes(earlier).empty());
  EXPECT_TRUE(nn::checkpoint_notes(source_dir() + "/tests/nn/weights_of_2b3d800.params").empty());
}

TEST_F(TrainerTest, ReportsTheEpochOfTheLatestStep) {
  const Clouds clouds(64);
  auto kv = KVStore::create("local");
  MemoryIterator data(clouds.data, clouds.label, {.batch = 16});
  nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.2}, kv);
  const auto text = [&] {
    std::ostringstream out;
    out << trainer.report();
    return out.str();
  };
  EXPECT_THAT(text(), HasSubstr("epoch 1  step 0  loss 0.0000"));
  for (int epoch = 1; epoch <= 2; ++epoch) {
    for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
    EXPECT_THAT(text(), HasSubstr(str("epoch ", epoch, "  step ", 4 * epoch, "  loss 0.")));
  }
  EXPECT_THAT(text(), testing::EndsWith("  0 examples/s"));
}

TEST_F(TrainerTest, RefusesADamagedCheckpoint) {
  train(directory, 1);
  std::filesystem::resize_file(directory + "/checkpoint.safetensors", 200);
  EXPECT_THROW(train(directory, 2), Corrupt);
}

TEST_F(TrainerTest, AFailingStepIsReportedByName) {
  auto kv = KVStore::create("local");
  nn::Trainer trainer(classifier(), optim::SGD{.lr = 0.1}, kv);
  Batch batch;
  batch.data = NDArray::zeros({2, 2});
  batch.label = NDArray::from(std::vector<std::int32_t>{0, 7}, {2});
  batch.examples = 2;
  try {
    trainer.step(batch, nn::softmax_ce);
    trainer.synchronize();
    FAIL() << "the wrong label was not found";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("softmax_cross_entropy"));
  }
}

}  // namespace
}  // namespace paceline
