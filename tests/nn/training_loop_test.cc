// Loops that leave out batches, fail, are left, and go on: what was trained on counts once, and nothing is lost
// silently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <support/cluster_in_process.h>
#include <support/refusal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "regression_batch.h"

namespace paceline::test {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Job {
  const char* mode;
  int servers;
};
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest finds it by this name
void PrintTo(const Job& job, std::ostream* out) { *out << job.mode; }

std::shared_ptr<KVStore> borrowed(KVStore& store) {
  return {&store, [](KVStore*) {}};
}

Batch floats_of(std::int64_t examples, double shift = 0) { return batch_of(examples, shift, DType::kFloat32); }

NDArray bad_loss(const NDArray&, const NDArray&) { throw InvalidArgument("this batch is bad"); }

std::string error_of(const std::function<void()>& call) { return refusal_of<Error>(call); }

std::vector<double> weights_of(const nn::Module& net) {
  std::vector<double> all;
  for (const auto& parameter : net.parameters())
    for (const double value : parameter->value.to_vector<double>()) all.push_back(value);
  return all;
}

// Of `records` examples, in a folder for checkpoints.
class Loop : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }

  // A loop over the epochs, as a worker of a job runs it.
  static MemoryIterator data_of(std::int64_t records, const std::shared_ptr<KVStore>& store) {
    const Batch all = floats_of(records);
    return {all.data, all.label, {.batch = 2, .source = nn::shared_source(store)}};
  }

  const std::string folder_ = testing::TempDir() + "training-loop-" + std::to_string(getpid());
};

class JobLoop : public Loop, public testing::WithParamInterface<Job> {
 protected:
  ClusterOptions options(int workers) const {
    return {.mode = GetParam().mode, .workers = workers, .servers = GetParam().servers, .engine = &default_engine()};
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, JobLoop,
                         testing::Values(Job{"dist_sync", 1}, Job{"dist_async", 1}, Job{"ring", 0}, Job{"gossip", 0},
                                         Job{"dist_local:steps=1", 1}));

TEST_P(JobLoop, ABatchWithoutAStepCountsAsUsed) {
  ClusterInProcess cluster(options(1));
  cluster.run([](int, KVStore& borrowed_store) {
    const auto store = borrowed(borrowed_store);
    MemoryIterator data = data_of(7, store);
    nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
    for (Batch& batch : trainer.epoch_of(data))
      if (batch.examples == 2) trainer.step(batch, nn::l2);
    EXPECT_EQ(trainer.epoch(), 1);
    EXPECT_EQ(trainer.report().steps, 3);
  });
}

TEST_P(JobLoop, AStepThatThrowsDoesNotHoldUpTheEpoch) {
  ClusterInProcess cluster(options(2));
  cluster.run([](int worker, KVStore& borrowed_store) {
    const auto store = borrowed(borrowed_store);
    MemoryIterator data = data_of(16, store);
    bool in_hook = false;
    nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store, {.on_gradients = [&](const nn::NamedGradients&) {
                          if (std::exchange(in_hook, false)) throw InvalidArgument("the hook is bad");
                        }});
    int number = 0;
    for (Batch& batch : trainer.epoch_of(data)) {
      ++number;
      in_hook = worker == 0 && number == 3;
      const auto loss = worker == 0 && number == 2 ? nn::Loss(bad_loss) : nn::Loss(nn::l2);
      const std::string error = error_of([&] { trainer.step(batch, loss); });
      EXPECT_EQ(error.empty(), worker != 0 || number < 2 || number > 3) << error;
    }
    EXPECT_EQ(trainer.epoch(), 1);
  });
}

// Of the epoch less than a step of both workers is left: one has no batch when the job goes on.
TEST_P(JobLoop, ResumesWhereAWorkerHasNothingLeft) {
  for (const std::int64_t records : {4, 5}) {
    SetUp();
    {
      ClusterInProcess cluster(options(2));
      cluster.run([&](int, KVStore& borrowed_store) {
        const auto store = borrowed(borrowed_store);
        MemoryIterator data = data_of(records, store);
        nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
        for (Batch& batch : trainer.epoch_of(data)) {
          trainer.step(batch, nn::l2);
          trainer.checkpoint(folder_);
          break;
        }
        trainer.synchronize();
      });
    }
    ClusterInProcess cluster(options(2));
    cluster.run([&](int, KVStore& borrowed_store) {
      const auto store = borrowed(borrowed_store);
      MemoryIterator data = data_of(records, store);
      nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
      EXPECT_TRUE(trainer.resume_if_present(folder_));
      for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::l2);
      EXPECT_EQ(trainer.epoch(), 1);
      trainer.checkpoint(folder_);
      trainer.synchronize();
    });
  }
}

TEST_P(JobLoop, WorkersThatFreezeOtherParametersAreRefused) {
  ClusterInProcess cluster(options(2));
  cluster.run([](int, KVStore& borrowed_store) {
    const auto store = borrowed(borrowed_store);
    const nn::Module net = nn::Sequential(nn::Dense(2), nn::Dense(2));
    net.initialize({4, 3}, 1);
    if (store->rank() == 0) net.freeze("0.*");
    nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, store);
    EXPECT_THAT(error_of([&] { trainer.step(floats_of(4), nn::l2); }),
                HasSubstr("the workers froze different parameters"));
  });
}

TEST_F(Loop, ResumesACheckpointOfTheLastStepOfAnEpoch) {
  const auto job = [&](int epochs) {
    const auto store = KVStore::create("local");
    MemoryIterator data = data_of(8, store);
    nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
    trainer.resume_if_present(folder_);
    while (trainer.epoch() < epochs) {
      for (Batch& batch : trainer.epoch_of(data)) {
        trainer.step(batch, nn::l2);
        if (!trainer.every(4)) continue;
        trainer.checkpoint(folder_);
        if (epochs == 1) return;  // the job dies
      }
      trainer.checkpoint(folder_);
    }
    EXPECT_EQ(trainer.report().steps, epochs * 4);
  };
  job(1);
  job(2);
}

TEST_F(Loop, ACheckpointNeedsAStepAndAFolder) {
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"));
  EXPECT_THAT(error_of([&] { trainer.checkpoint(folder_); }), HasSubstr("comes after the first step"));
  EXPECT_THAT(error_of([&] { trainer.checkpoint(""); }), HasSubstr("empty name"));
}

TEST_F(Loop, EvaluationIsNotOfTheIteratorThatTheLoopRuns) {
  const auto store = KVStore::create("local");
  MemoryIterator data = data_of(8, store), other = data_of(8, store);
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
  int steps = 0;
  for (Batch& batch : trainer.epoch_of(data)) {
    trainer.step(batch, nn::l2);
    ++steps;
    EXPECT_THAT(error_of([&] { trainer.evaluate(data, nn::l2); }), HasSubstr("iterator of the running loop"));
    EXPECT_EQ(trainer.evaluate(other, nn::l2).examples, 8);
  }
  EXPECT_EQ(steps, 4);
}

TEST_F(Loop, WhatWasAccumulatedIsLostWithTheBatchThatFailsAndNotCounted) {
  const auto train = [](bool accumulates) {
    const nn::Module net = nn::Dense(2);
    net.initialize({4, 3}, 1);
    nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, KVStore::create("local"));
    if (accumulates) {
      trainer.accumulate(floats_of(4, 1), nn::l2);
      EXPECT_THROW(trainer.accumulate(floats_of(4, 2), bad_loss), InvalidArgument);
    }
    trainer.step(floats_of(4, 3), nn::l2);
    trainer.synchronize();
    EXPECT_EQ(trainer.report().examples, 4);
    return weights_of(net);
  };
  EXPECT_EQ(train(true), train(false));
}

TEST_F(Loop, AnAccumulatedTableIsLostWithTheBatchThatFails) {
  const NDArray ids = NDArray::from(std::vector<std::int32_t>{0, 1, 2, 3}, {4});
  const nn::Module net = nn::Sequential(nn::Embedding(5, 3, {.sparse_grad = true}), nn::Dense(5));
  nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, KVStore::create("local"));
  MemoryIterator data(ids, ids, {.batch = 2});
  int number = 0;
  for (Batch& batch : trainer.epoch_of(data)) {
    const bool fails = ++number == 2;
    const auto loss = fails ? nn::Loss(bad_loss) : nn::Loss(nn::softmax_ce);
    EXPECT_EQ(error_of([&] { trainer.accumulate(batch, loss); }).empty(), !fails);
  }
  EXPECT_EQ(trainer.report().steps, 0);
  EXPECT_EQ(trainer.epoch(), 1);
}

TEST_F(Loop, AnExceptionThatLeavesTheLoopDropsWhatWasAccumulated) {
  const auto train = [](bool interrupted) {
    const auto store = KVStore::create("local");
    MemoryIterator data = data_of(4, store);
    const nn::Module net = nn::Dense(2);
    net.initialize({2, 3}, 1);
    nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, store);
    const auto epoch = [&](bool throws) {
      for (Batch& batch : trainer.epoch_of(data)) {
        trainer.accumulate(batch, nn::l2);
        if (throws) throw std::runtime_error("interrupted");
      }
    };
    if (interrupted) {
      EXPECT_THROW(epoch(true), std::runtime_error);
    }
    epoch(false);
    EXPECT_EQ(trainer.report().examples, 4);
    return weights_of(net);
  };
  EXPECT_EQ(train(true), train(false));
}

TEST_F(Loop, WhatIsLostWithAFailedBatchIsDeliveredAgainWhereTheLoopIsLeft) {
  const auto store = KVStore::create("local");
  MemoryIterator data = data_of(6, store);
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
  int number = 0;
  const auto epoch = [&] {
    for (Batch& batch : trainer.epoch_of(data)) trainer.accumulate(batch, ++number == 2 ? nn::Loss(bad_loss) : nn::l2);
  };
  EXPECT_THROW(epoch(), InvalidArgument);
  epoch();
  EXPECT_EQ(trainer.report().examples, 6);
}

TEST_F(Loop, UnfreezingAfterTheRefusalTrains) {
  const nn::Module net = nn::Sequential(nn::Dense(2), nn::Dense(2));
  net.initialize({4, 3}, 1);
  net.freeze("*");
  nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, KVStore::create("local"));
  EXPECT_THROW(trainer.step(floats_of(4), nn::l2), InvalidArgument);
  net.unfreeze("1.*");
  for (int i = 0; i < 2; ++i) trainer.step(floats_of(4), nn::l2);
  trainer.synchronize();
}

TEST_F(Loop, WhatWasPushedBeforeAnExceptionIsNotTrainedOnAgain) {
  const auto store = KVStore::create("local");
  MemoryIterator data = data_of(12, store);
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
  std::int64_t examples = 0;
  const auto epoch = [&](std::int64_t until) {
    for (Batch& batch : trainer.epoch_of(data)) {
      trainer.step(batch, nn::l2);
      examples += batch.examples;
      if (examples == until) throw std::runtime_error("interrupted");
    }
  };
  EXPECT_THROW(epoch(6), std::runtime_error);
  epoch(-1);
  EXPECT_EQ(examples, 12);
}

TEST_F(Loop, ANaNThatStopsIsNotSavedAfterTheLoopWasLeft) {
  const auto store = KVStore::create("local");
  const Batch all = floats_of(16);
  std::vector<double> labels = all.label.to_vector<double>();
  for (std::size_t i = 12; i < 16; ++i) labels[i] = std::numeric_limits<double>::quiet_NaN();
  MemoryIterator data(all.data, NDArray::from(labels, {16, 2}), {.batch = 2});
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store, {.on_nan = nn::OnNan::kStop});
  int steps = 0;
  for (Batch& batch : trainer.epoch_of(data)) {
    trainer.step(batch, nn::l2);
    if (++steps == 4) break;
  }
  EXPECT_THAT(error_of([&] { trainer.checkpoint(folder_); }), HasSubstr("the loss of step 4 is nan"));
  EXPECT_THAT(error_of([&] { trainer.step(floats_of(2), nn::l2); }), HasSubstr("the loss of step 4 is nan"));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

// From the fourth step on the loss is no number. What ends the loop is thrown, and the log repeats nothing of it.
TEST_F(Loop, ANaNThatStopsIsSaidOnce) {
  const Batch all = floats_of(16);
  std::vector<double> labels = all.label.to_vector<double>();
  std::fill(labels.begin() + 12, labels.end(), std::numeric_limits<double>::quiet_NaN());
  const auto train = [&](int most_steps, const std::function<void(nn::Trainer&)>& afterwards) {
    MemoryIterator data(all.data, NDArray::from(labels, {16, 2}), {.batch = 2});
    testing::internal::CaptureStderr();
    const std::string error = error_of([&] {
      nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"), {.on_nan = nn::OnNan::kStop});
      int steps = 0;
      for (Batch& batch : trainer.epoch_of(data)) {
        trainer.step(batch, nn::l2);
        if (++steps == most_steps) break;
      }
      afterwards(trainer);
    });
    return std::pair(error, testing::internal::GetCapturedStderr());
  };
  const auto [thrown, log] = train(8, [](nn::Trainer&) {});
  EXPECT_THAT(thrown, HasSubstr("the loss of step 4 is nan"));
  EXPECT_THAT(log, Not(HasSubstr("the loss of step")));
  const auto [after_leaving, its_log] = train(4, [](nn::Trainer& trainer) { trainer.synchronize(); });
  EXPECT_THAT(after_leaving, HasSubstr("the loss of step 4 is nan"));
  EXPECT_THAT(its_log, Not(HasSubstr("the loss of step")));
  const auto [nothing, only_log] = train(4, [](nn::Trainer&) {});
  EXPECT_EQ(nothing, "");
  EXPECT_THAT(only_log, HasSubstr("the loss of step 4 is nan"));
}

TEST_F(Loop, BatchesOfAnotherIteratorAreNoneOfTheEpochs) {
  std::set<std::int64_t> seen;
  const auto train = [&](bool with_others) {
    const auto store = KVStore::create("local");
    const Batch other_data = floats_of(16, 5);
    MemoryIterator data = data_of(16, store), others(other_data.data, other_data.label, {.batch = 4});
    nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
    trainer.resume_if_present(folder_);
    others.start(0);
    int steps = 0;
    for (Batch& batch : trainer.epoch_of(data)) {
      for (const Range& range : batch.positions)
        for (std::int64_t i = range.begin; i < range.end; ++i) seen.insert(i);
      trainer.step(batch, nn::l2);
      if (!with_others) continue;
      Batch other;
      ASSERT_TRUE(others.next(other) && others.next(other));
      trainer.step(other, nn::l2);
      if (++steps == 2) break;
    }
    trainer.checkpoint(folder_);
  };
  train(true);
  train(false);
  EXPECT_EQ(seen.size(), 16);
}

TEST_F(Loop, SkippingLooksAtTheLossesOfAllAccumulatedBatches) {
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"), {.on_nan = nn::OnNan::kSkip});
  const auto nan_alone = [](const NDArray& scores, const NDArray& label) {  // its gradients are finite
    return nn::l2(scores, label) + NDArray::full({}, std::numeric_limits<double>::quiet_NaN());
  };
  trainer.accumulate(floats_of(4), nan_alone);
  trainer.step(floats_of(4), nn::l2);
  trainer.synchronize();
  const nn::TrainerReport report = trainer.report();
  EXPECT_EQ(report.left_out, 1);
  std::ostringstream line;
  line << report;
  EXPECT_THAT(line.str(), HasSubstr("1 steps left out"));
}

TEST_F(Loop, ANetworkThatIsFrozenWholeDoesNotTrain) {
  const nn::Module net = nn::Dense(2);
  net.initialize({4, 3}, 1);
  net.freeze("*");
  nn::Trainer trainer(net, optim::SGD{.lr = 0.1}, KVStore::create("local"));
  EXPECT_THAT(error_of([&] { trainer.step(floats_of(4), nn::l2); }),
              HasSubstr("every parameter of the network is frozen"));
}

class Resuming : public Loop {
 protected:
  static nn::Module with_frozen_body() {
    const nn::Module net = nn::Sequential(nn::Dense(2), nn::Dense(2));
    net.initialize({2, 3}, 1);
    net.freeze("0.*");
    return net;
  }
};

TEST_F(Resuming, KeepsAFrozenPartAsTheProgramHadMovedIt) {
  const nn::Module first = with_frozen_body();
  nn::Trainer trainer(first, optim::SGD{.lr = 0.1}, KVStore::create("local"));
  trainer.step(floats_of(2), nn::l2);
  first.parameters()[0]->value.fill(1);
  trainer.checkpoint(folder_);
  const nn::Module again = with_frozen_body();
  nn::Trainer resumed(again, optim::SGD{.lr = 0}, KVStore::create("local"));
  EXPECT_TRUE(resumed.resume_if_present(folder_));
  resumed.step(floats_of(2), nn::l2);
  resumed.synchronize();
  EXPECT_EQ(weights_of(again), weights_of(first));
}

TEST_F(Resuming, RefusesWeightsOfAnotherType) {
  nn::Module doubles = nn::Dense(2), floats = nn::Dense(2);
  doubles.initialize({2, 3}, 1, {}, DType::kFloat64);
  floats.initialize({2, 3}, 1);
  nn::Trainer trainer(doubles, optim::SGD{.lr = 0.1}, KVStore::create("local"));
  trainer.step(batch_of(2), nn::l2);
  trainer.checkpoint(folder_);
  nn::Trainer other(floats, optim::SGD{.lr = 0.1}, KVStore::create("local"));
  EXPECT_THAT(error_of([&] { other.resume_if_present(folder_); }),
              HasSubstr("its weights are float64, and those of this one float32"));
}

// A run over 12 examples, in an order of its own. It ends with a checkpoint after `steps` steps of 2 examples.
class ResumingAnOrder : public Resuming {
 protected:
  std::multiset<double> run(std::uint64_t seed, int steps, double shift = 0) {
    const auto store = KVStore::create("local");
    const Batch all = floats_of(12, shift);
    MemoryIterator data(all.data, all.label, {.batch = 2, .shuffle = seed, .source = nn::shared_source(store)});
    nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
    trainer.resume_if_present(folder_);
    std::multiset<double> seen;
    for (Batch& batch : trainer.epoch_of(data)) {
      for (std::int64_t i = 0; i < batch.examples; ++i) seen.insert(batch.data.at(i).to_vector<float>()[0]);
      trainer.step(batch, nn::l2);
      if (--steps == 0) break;
    }
    trainer.checkpoint(folder_);
    return seen;
  }
};

TEST_F(ResumingAnOrder, GoesOnInTheSameOneOnly) {
  std::multiset<double> seen = run(1, 2);
  EXPECT_THAT(error_of([&] { run(2, 1); }), HasSubstr("epoch 1 began with its records in the order 'seed=1 "));
  EXPECT_THAT(error_of([&] { run(1, 1, 0.5); }), HasSubstr("are those of other records; use the data set"));
  seen.merge(run(1, 100));
  const Batch all = floats_of(12);
  std::multiset<double> expected;
  for (std::int64_t i = 0; i < 12; ++i) expected.insert(all.data.at(i).to_vector<float>()[0]);
  EXPECT_EQ(seen, expected);
  run(2, 1, 0.5);  // another epoch may have another order
}

TEST_F(ResumingAnOrder, SaysHowFarItsEpochIs) {
  run(1, 2);
  testing::internal::CaptureStderr();
  run(1, 100);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(" within epoch 1, after 4 of its records"));
}

TEST_F(ResumingAnOrder, TakesCheckpointsThatDoNotSayIt) {
  run(1, 2);
  std::vector<std::pair<std::string, std::string>> metadata;
  const std::string path = nn::checkpoint_path(folder_);
  const NamedArrays arrays = load_safetensors(path, &metadata);
  EXPECT_EQ(std::erase_if(metadata, [](const auto& entry) { return entry.first == "order"; }), 1u);
  save_safetensors(path, arrays, metadata);
  EXPECT_EQ(run(2, 100).size(), 8u);
}

TEST_F(ResumingAnOrder, RefusesToChangeItWithinAnEpoch) {
  const auto store = KVStore::create("local");
  const Batch all = floats_of(12);
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, store);
  const auto train = [&](std::uint64_t seed, bool whole) {
    MemoryIterator data(all.data, all.label, {.batch = 2, .shuffle = seed, .source = nn::shared_source(store)});
    for (Batch& batch : trainer.epoch_of(data)) {
      trainer.step(batch, nn::l2);
      if (!whole) break;
    }
  };
  train(1, false);
  EXPECT_THAT(error_of([&] { train(2, true); }), HasSubstr("cannot go on in the order 'seed=2 "));
  train(1, true);
  train(2, true);
  EXPECT_EQ(trainer.epoch(), 2);
}

TEST_F(Resuming, HappensOnceInAStore) {
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"));
  trainer.step(floats_of(2), nn::l2);
  trainer.checkpoint(folder_);
  nn::Trainer again(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"));
  EXPECT_TRUE(again.resume_if_present(folder_));
  EXPECT_THAT(error_of([&] { again.resume_if_present(folder_); }), HasSubstr("trained or resumed already"));
}

TEST_F(Resuming, FindsTheNotesAgain) {
  const nn::Notes notes{{"image_size", "14"}, {"counter:x", "a \"note\""}, {"", ""}};
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"), {.notes = notes});
  trainer.step(floats_of(2), nn::l2);
  const std::string path = trainer.checkpoint(folder_);
  EXPECT_EQ(nn::checkpoint_notes(folder_), notes);
  EXPECT_EQ(nn::checkpoint_notes(path), notes);
  nn::Trainer again(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"));
  nn::Notes seen;
  EXPECT_TRUE(again.resume_if_present(folder_, [&](const nn::Notes& found) { seen = found; }));
  EXPECT_EQ(seen, notes);
  again.step(floats_of(2), nn::l2);
  again.checkpoint(folder_);
  EXPECT_TRUE(nn::checkpoint_notes(folder_).empty()) << "they are those of the trainer that wrote it";
}

TEST_F(Resuming, ReadsNotesFromTheHeaderAlone) {
  const nn::Notes notes{{"long", std::string(400'000, 'x')}, {"size", "14"}};
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"), {.notes = notes});
  trainer.step(floats_of(2), nn::l2);
  const std::string path = trainer.checkpoint(folder_);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_EQ(nn::checkpoint_notes(path), notes);
  std::filesystem::resize_file(path, 300'000);
  EXPECT_THAT(error_of([&] { nn::checkpoint_notes(path); }), HasSubstr("is longer than what is left of the file"));
  std::filesystem::remove(path);
  EXPECT_THAT(error_of([&] { nn::checkpoint_notes(path); }), HasSubstr("there is no such file"));
}

TEST_F(Resuming, NotesOfADamagedHeaderAreRefusedAsTheFileIs) {
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"), {.notes = {{"size", "14"}}});
  trainer.step(floats_of(2), nn::l2);
  const std::string path = trainer.checkpoint(folder_);
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  std::string damaged = bytes.str();
  damaged.replace(damaged.find(R"("note:size":"14")"), 16, R"("note:size":"41")");
  std::ofstream(path, std::ios::binary) << damaged;
  EXPECT_THAT(error_of([&] { nn::checkpoint_notes(path); }), HasSubstr("the header is damaged"));
  EXPECT_EQ(error_of([&] { nn::checkpoint_notes(path); }), error_of([&] { load_safetensors(path); }));
  for (const std::uintmax_t cut : {4, 0}) {
    std::filesystem::resize_file(path, cut);
    EXPECT_EQ(error_of([&] { nn::checkpoint_notes(path); }), error_of([&] { load_safetensors(path); }));
  }
}

TEST_P(JobLoop, ACheckOfTheNotesRefusesACheckpointForAllWorkers) {
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"), {.notes = {{"size", "14"}}});
  trainer.step(floats_of(2), nn::l2);
  trainer.checkpoint(folder_);
  ClusterInProcess cluster(options(2));
  cluster.run([&](int, KVStore& borrowed_store) {
    const nn::Module net = nn::Dense(2);
    nn::Trainer resumed(net, optim::SGD{.lr = 0.1}, borrowed(borrowed_store));
    const auto refuse = [](const nn::Notes& notes) { throw InvalidArgument("the size was " + notes.at("size")); };
    EXPECT_THAT(error_of([&] { resumed.resume_if_present(folder_, refuse); }),
                HasSubstr(borrowed_store.rank() == 0 ? "the size was 14" : "could not be resumed from"));
    EXPECT_TRUE(net.parameters().empty());
  });
}

TEST_F(Resuming, RefusesWeightsThatAreLoadedBehindIt) {
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"));
  trainer.step(floats_of(2), nn::l2);
  trainer.checkpoint(folder_);
  const nn::Module net = nn::Dense(2);
  nn::Trainer again(net, optim::SGD{.lr = 0.1}, KVStore::create("local"));
  EXPECT_TRUE(again.resume_if_present(folder_));
  nn::load_weights(net, folder_);
  EXPECT_THAT(error_of([&] { again.step(floats_of(2), nn::l2); }),
              HasSubstr("between resume_if_present() and the first"));
}

}  // namespace
}  // namespace paceline::test
