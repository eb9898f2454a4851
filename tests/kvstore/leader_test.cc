// Who acts for all where the worker of the lowest rank is lost, or has come back.
#include <gtest/gtest.h>
#include <support/cluster_in_process.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace paceline::test {
namespace {

constexpr const char* kModes[] = {"dist_sync", "dist_local", "ring", "gossip"};

NDArray full(double value, Engine& engine) { return NDArray::full(Shape{4}, value, DType::kFloat64, {}, engine); }

int servers_of(const std::string& mode) { return mode == "ring" || mode == "gossip" ? 0 : 1; }

template <class Reached>
void wait_for(const Reached& reached) {
  while (!reached()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The others are at the barrier already when the scheduler finds out.
TEST(Leader, IsOneOfThoseThatALossReleases) {
  for (const std::string mode : kModes) {
    SCOPED_TRACE(mode);
    constexpr int kWorkers = 3;
    ClusterInProcess cluster({.mode = mode, .workers = kWorkers, .servers = servers_of(mode), .serial = false});
    std::atomic<int> ready = 0;
    std::array<double, kWorkers> weights{};
    std::array<bool, kWorkers> empty{};
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = full(0, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1});
      if (mode == "gossip") store.push("w", full(-worker, engine));
      ++ready;
      wait_for([&] { return ready == kWorkers; });
      if (worker == 0) return cluster.kill_worker(0);
      const auto w = static_cast<std::size_t>(worker);
      empty[w] = store.save().arrays.empty();
      EXPECT_EQ(store.backend().leads(), worker == 1);
      store.pull("w", weight);
      weights[w] = weight.to_vector<double>()[0];
      store.barrier();
    });
    EXPECT_FALSE(empty[1]);
    EXPECT_TRUE(empty[2]);
    EXPECT_EQ(weights[1], weights[2]);
    EXPECT_EQ(weights[1], mode == "gossip" ? 1.5 : 0);
  }
}

// As nn::Trainer does, worker 0 goes on with the next epoch, while worker 1 saves at the end of this one.
TEST(Leader, IsNotAWorkerThatHasReturnedForTheNextEpoch) {
  for (const std::string mode : {"dist_sync", "ring"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 2, .servers = servers_of(mode), .serial = false});
    std::atomic<int> ready = 0;
    std::atomic<bool> returned = false, saved = false;
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      store.init({{"w", full(0, engine)}});
      store.backend().data_part(0);
      store.barrier();
      EXPECT_EQ(store.backend().leads(), worker == 0);
      ++ready;
      wait_for([&] { return ready == 2; });
      if (worker == 1) {
        wait_for([&] { return returned.load(); });
        EXPECT_FALSE(store.save().arrays.empty());
        EXPECT_TRUE(store.backend().leads());
        saved = true;
        store.backend().data_part(1);
        store.barrier();
        EXPECT_FALSE(store.backend().leads());
        return;
      }
      cluster.kill_worker(0);
      cluster.join_worker(0);
      KVStore& mine = cluster.worker(0);
      returned = true;
      mine.backend().data_part(1);
      mine.init({{"w", full(0, engine)}});
      wait_for([&] { return saved.load(); });
      mine.barrier();
      EXPECT_TRUE(mine.backend().leads());
    });
  }
}

}  // namespace
}  // namespace paceline::test
