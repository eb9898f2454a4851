// Trainers of several workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/memory_iterator.h>
#include <paceline/mutex.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <support/cluster_in_process.h>
#include <support/refusal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <numeric>

namespace paceline::test {
namespace {

// Rounds close without a worker that has no batch left. Its next gradient must be of the weights that they made.
TEST(SharedTraining, WhoWaitedGoesOnFromTheWeightsThereAre) {
  constexpr int kWorkers = 3;
  std::vector<float> values(200);
  std::iota(values.begin(), values.end(), -100.0f);
  for (float& value : values) value /= 100;
  std::vector<std::int32_t> labels(100);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = i % 3 == 0;
  for (const std::string mode : {"dist_sync", "ring"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster(
        {.mode = mode, .workers = kWorkers, .servers = mode == "ring" ? 0 : 1, .engine = &default_engine()});
    std::vector<std::vector<float>> begins(kWorkers);
    std::vector<int> steps(kWorkers);
    cluster.run([&](int, KVStore& store) {
      const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
      const auto rank = static_cast<std::size_t>(store.rank());
      MemoryIterator data(NDArray::from(values, {100, 2}), NDArray::from(labels, {100}),
                          {.batch = 33, .shuffle = 1, .source = nn::shared_source(kv)});
      nn::Trainer trainer(nn::Sequential(nn::Dense(4), nn::Tanh(), nn::Dense(2)), optim::SGD{.lr = 0.5}, kv);
      while (trainer.epoch() < 2) {
        for (Batch& batch : trainer.epoch_of(data)) {
          if (trainer.epoch() == 1 && begins[rank].empty())
            for (const auto& parameter : trainer.net().parameters())
              for (const float value : parameter->value.to_vector<float>()) begins[rank].push_back(value);
          steps[rank] += trainer.epoch() == 0;
          trainer.step(batch, nn::softmax_ce);
        }
      }
      trainer.synchronize();
    });
    EXPECT_NE(*std::min_element(steps.begin(), steps.end()), *std::max_element(steps.begin(), steps.end()));
    for (const std::vector<float>& weights : begins) {
      EXPECT_FALSE(weights.empty());
      EXPECT_EQ(weights, begins[0]);
    }
  }
}

// The slow one waits in its first batch until the other has delivered three quarters of the epoch. In dist_sync the
// other would wait for it.
TEST(SharedTraining, UnderADynamicBalanceAFastWorkerDeliversMore) {
  constexpr std::int64_t kExamples = 1003, kEpochs = 2;
  std::vector<float> ids(kExamples);
  std::iota(ids.begin(), ids.end(), 0.0f);
  for (const std::string mode : {"dist_async", "dist_sync"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 2, .servers = 1, .engine = &default_engine()});
    Mutex mutex;
    CondVar changed;
    std::vector<std::vector<int>> delivered(kEpochs, std::vector<int>(kExamples));
    std::vector<std::int64_t> counts(2);
    cluster.run([&](int, KVStore& store) {
      const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
      const auto rank = static_cast<std::size_t>(store.rank());
      MemoryIterator data(NDArray::from(ids, {kExamples, 1}), NDArray::zeros({kExamples}, DType::kInt32),
                          {.batch = 10,
                           .shuffle = 1,
                           .source = nn::shared_source(kv, {.balance = nn::Balance::kDynamic, .piece_seconds = 0.05})});
      nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 1e-7}, kv);
      while (trainer.epoch() < kEpochs) {
        const auto epoch = static_cast<std::size_t>(trainer.epoch());
        for (Batch& batch : trainer.epoch_of(data)) {
          {
            const Lock lock(mutex);
            for (const float id : batch.data.to_vector<float>()) ++delivered[epoch][static_cast<std::size_t>(id)];
            counts[rank] += batch.examples;
            changed.notify_all();
            if (rank == 1 && epoch == 0 && mode == "dist_async")
              changed.wait(mutex, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return counts[0] >= kExamples * 3 / 4; });
          }
          trainer.step(batch, nn::softmax_ce);
        }
      }
      trainer.synchronize();
    });
    for (const std::vector<int>& epoch : delivered) EXPECT_THAT(epoch, testing::Each(1));
    EXPECT_EQ(counts[0] + counts[1], kEpochs * kExamples);
  }
}

// Leaving the loop in the middle of a piece, accumulated batches, data that is not float32, and what is refused.
TEST(SharedTraining, UnderADynamicBalanceTheLoopIsAsOtherwise) {
  constexpr std::int64_t kExamples = 400;
  std::vector<double> ids(kExamples);
  std::iota(ids.begin(), ids.end(), 0.0);
  ClusterInProcess cluster({.mode = "dist_async", .workers = 2, .servers = 1, .engine = &default_engine()});
  Mutex mutex;
  std::vector<int> delivered(kExamples);
  cluster.run([&](int, KVStore& store) {
    const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
    MemoryIterator data(
        {{"data", NDArray::from(ids, {kExamples, 1})}, {"label", NDArray::zeros({kExamples}, DType::kInt32)}},
        {.batch = 10, .source = nn::shared_source(kv, {.balance = nn::Balance::kDynamic})});
    nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 1e-7}, kv);
    int batches = 0;
    while (trainer.epoch() < 1)
      for (Batch& batch : trainer.epoch_of(data)) {
        {
          const Lock lock(mutex);
          for (const double id : batch.data.to_vector<double>()) ++delivered[static_cast<std::size_t>(id)];
        }
        if (++batches % 4 != 0)
          trainer.accumulate(batch, nn::softmax_ce);
        else
          trainer.step(batch, nn::softmax_ce);
        if (batches == 1) {
          EXPECT_THAT(refusal_of([&] { trainer.synchronize(); }), testing::HasSubstr("between two epochs"));
        }
        if (batches == 6) break;
      }
    trainer.synchronize();
    EXPECT_EQ(trainer.net().parameters()[0]->value.dtype(), DType::kFloat64);
  });
  EXPECT_THAT(delivered, testing::Each(1));
}

// Worker 1 is lost and returns where nothing of the epoch is left for it.
TEST(SharedTraining, WhoReturnsAndGetsNoBatchEvaluatesAndSavesWithTheOthers) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / str("paceline_returned_", getpid());
  for (const std::string mode : {"dist_sync", "dist_async", "ring"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster(
        {.mode = mode, .workers = 2, .servers = mode == "ring" ? 0 : 1, .engine = &default_engine(), .tells = true});
    std::vector<std::unique_ptr<nn::Trainer>> trainers(2);
    const auto shared = [&](int worker) { return std::shared_ptr<KVStore>(&cluster.worker(worker), [](KVStore*) {}); };
    const auto data_of = [&](int worker) {
      return MemoryIterator(NDArray::zeros({40, 2}), NDArray::zeros({40}, DType::kInt32),
                            {.batch = 10, .source = nn::shared_source(shared(worker))});
    };
    const auto begin = [&](int worker) {
      auto& trainer = trainers[static_cast<std::size_t>(worker)];
      trainer = std::make_unique<nn::Trainer>(nn::Dense(2), optim::SGD{.lr = 0.1}, shared(worker));
      trainer->resume_if_present(folder.string());
    };
    const auto train = [&](int worker, const std::function<void()>& in_first_batch) {
      nn::Trainer& trainer = *trainers[static_cast<std::size_t>(worker)];
      MemoryIterator data = data_of(worker), held_out = data_of(worker);
      int taken = 0;
      for (Batch& batch : trainer.epoch_of(data)) {
        trainer.step(batch, nn::softmax_ce);
        if (++taken == 1) in_first_batch();
      }
      const double accuracy = trainer.evaluate(held_out);
      trainer.checkpoint(folder.string());
      return std::pair(taken, accuracy);
    };
    cluster.run([&](int worker, KVStore&) {
      begin(worker);
      train(worker, [] {});
    });
    trainers[1].reset();
    cluster.kill_worker(1);
    std::promise<void> has_all, is_back;
    auto other = std::async(std::launch::async, [&] {
      cluster.worker(0).barrier();  // until worker 1 counts as lost
      return train(0, [&] {
        has_all.set_value();
        is_back.get_future().wait();
      });
    });
    has_all.get_future().wait();
    cluster.join_worker(1);
    cluster.worker(0).put_fact("/progress/resuming", "yes");
    EXPECT_THAT([&] { begin(1); }, testing::ThrowsMessage<NetworkError>(testing::HasSubstr("start this worker again")));
    cluster.worker(0).put_fact("/progress/resuming", "");
    begin(1);
    EXPECT_EQ(trainers[1]->epoch(), 1);
    is_back.set_value();
    EXPECT_EQ(train(1, [] {}), std::pair(0, 1.0));
    EXPECT_EQ(other.get(), std::pair(4, 1.0));
    trainers.clear();
    std::filesystem::remove_all(folder);
  }
}

TEST(SharedTraining, AnIteratorWithoutASourceIsRefusedWhereSeveralWorkersTrain) {
  const NDArray x = NDArray::zeros({8, 2}), y = NDArray::zeros({8}, DType::kInt32);
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 2, .servers = 1, .engine = &default_engine()});
  cluster.run([&](int, KVStore& store) {
    nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.5}, std::shared_ptr<KVStore>(&store, [](KVStore*) {}));
    MemoryIterator without(x, y, {.batch = 4}), own(x, y, {.batch = 4, .source = fixed_source()});
    EXPECT_THAT([&] { trainer.epoch_of(without); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr(
                    "each of the 2 workers would train on every record of its iterator, which has no source")));
    int steps = 0;
    for (Batch& batch : trainer.epoch_of(own)) {
      trainer.step(batch, nn::softmax_ce);
      ++steps;
    }
    EXPECT_EQ(steps, 2);
  });
}

// Hands its input on; its gradient waits for an array.
struct GatedAttributes {
  NDArray gate;
};

const OpDef& gated() {
  static const OpDef op =
      OpDef("gated")
          .attributes<GatedAttributes>()
          .input("x")
          .infer([](const std::vector<NDArray>& inputs, const void*) {
            return std::vector<ArraySpec>{{inputs[0].shape(), inputs[0].dtype()}};
          })
          .cpu([](const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
            std::copy_n(in[0].as<const float>(), in[0].size(), out[0].as<float>());
          })
          .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
            return std::vector<Gradient>{gradients[0] * call.attributes<GatedAttributes>().gate};
          });
  return op;
}

// The last layer's weights arrive while the first layer's gradient is still to come.
TEST(SharedTraining, LayersDoNotWaitForEachOther) {
  for (const std::string mode : {"dist_sync", "dist_async", "ring"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster(
        {.mode = mode, .workers = 2, .servers = mode == "ring" ? 0 : 1, .engine = &default_engine()});
    cluster.run([&](int, KVStore& store) {
      const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
      const NDArray gate = NDArray::full({1}, 1);
      std::promise<Completion> closed;
      default_engine().push_async({"gate"}, {}, std::array{gate.variable()}, [&](TaskContext&, Completion completion) {
        closed.set_value(std::move(completion));
      });
      Completion open = closed.get_future().get();
      nn::Trainer trainer(
          nn::Sequential(
              nn::Dense(512),
              nn::Lambda("Gated", [&](const NDArray& x) { return invoke(gated(), {x}, GatedAttributes{gate}); }),
              nn::Dense(2)),
          optim::SGD{.lr = 0.5}, kv);
      Batch batch;
      batch.data = NDArray::full({2, 600}, 1);
      batch.label = NDArray::from(std::vector<std::int32_t>{0, 0}, {2});
      batch.examples = 2;
      trainer.step(batch, nn::softmax_ce);
      const auto parameters = trainer.net().parameters();
      std::future<void> arrived = std::async(std::launch::async, [&] { parameters.back()->value.wait(); });
      EXPECT_EQ(arrived.wait_for(std::chrono::seconds(20)), std::future_status::ready);
      open.done();
      arrived.get();
      trainer.synchronize();
    });
  }
}

// Each example is run once, by one worker, and all hear the same number: that of one process.
TEST(SharedTraining, EvaluationIsSharedOut) {
  constexpr int kWorkers = 3;
  std::vector<float> values(202);
  std::iota(values.begin(), values.end(), -101.0f);
  std::vector<std::int32_t> labels(101);
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = i % 7 < 3;
  for (const std::string mode : {"dist_sync", "dist_async", "ring"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster(
        {.mode = mode, .workers = kWorkers, .servers = mode == "ring" ? 0 : 1, .engine = &default_engine()});
    std::vector<nn::Evaluation> heard(kWorkers), alone(kWorkers);
    std::vector<double> again(kWorkers);
    std::atomic<std::int64_t> examples = 0;
    cluster.run([&](int, KVStore& store) {
      const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
      const auto rank = static_cast<std::size_t>(store.rank());
      const NDArray x = NDArray::from(values, {101, 2}), y = NDArray::from(labels, {101});
      MemoryIterator data(x, y, {.batch = 8, .source = nn::shared_source(kv)}), test(x, y, {.batch = 101});
      const nn::Module net = nn::Sequential(nn::Lambda("Count",
                                                       [&](const NDArray& in) {
                                                         examples += in.size(0);
                                                         return in;
                                                       }),
                                            nn::Dense(4), nn::Tanh(), nn::Dense(2));
      nn::Trainer trainer(net, optim::SGD{.lr = 0.01}, kv);
      for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
      trainer.synchronize();
      alone[rank] = nn::evaluate(net, test, nn::softmax_ce);
      store.barrier();
      if (rank == 0) examples = 0;
      store.barrier();
      heard[rank] = trainer.evaluate(data, nn::softmax_ce);
      store.barrier();
      if (rank == 0) {
        EXPECT_EQ(examples, 101);
      }
      again[rank] = trainer.evaluate(data);
    });
    EXPECT_GT(heard[0].accuracy, 0);
    EXPECT_LT(heard[0].accuracy, 1);
    EXPECT_GT(heard[0].loss, 0);
    for (const nn::Evaluation& each : heard) {
      EXPECT_EQ(each.examples, 101);
      EXPECT_EQ(each.accuracy, alone[0].accuracy);
      EXPECT_EQ(each.loss, heard[0].loss);
      EXPECT_NEAR(each.loss, alone[0].loss, 1e-6);
    }
    for (const double accuracy : again) EXPECT_EQ(accuracy, alone[0].accuracy);
  }
}

}  // namespace
}  // namespace paceline::test
