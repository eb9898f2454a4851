// Mode ring where workers do not do the same in every step.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <thread>

#include "failed_array.h"

namespace paceline::test {
namespace {

NDArray full(double value, Engine& engine) { return NDArray::full(Shape{4}, value, DType::kFloat64, {}, engine); }

// Over tcp two workers send each other everything, over inproc each sums a part.
class RingUneven : public testing::TestWithParam<const char*> {
 protected:
  ClusterOptions ring_of(int workers) const {
    return {.mode = "ring", .workers = workers, .servers = 0, .transport = GetParam(), .serial = false};
  }
};

// Statistics have two owners, so that every worker once owns what it has no part in.
TEST_P(RingUneven, StatisticsAreTheMeanOfThoseThatTheRoundHas) {
  constexpr int kWorkers = 2;
  ClusterInProcess cluster(ring_of(kWorkers));
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const std::array<std::string, 2> names{"a", "b"};
    const std::array<NDArray, 2> outs{full(0, engine), NDArray::full(Shape{40000}, 0, DType::kFloat64, {}, engine)};
    store.init({{names[0], outs[0], true}, {names[1], outs[1], true}});
    store.set_optimizer(optim::SGD{.lr = 1});
    const auto step = [&](double value) {
      for (std::size_t k = 0; k < names.size(); ++k)
        store.push_pull({{names[k], NDArray::full(outs[k].shape(), value, DType::kFloat64, {}, engine)}},
                        {{names[k], outs[k]}}, 1);
      store.step_end();
      for (const NDArray& out : outs) out.wait();
    };
    step(100);
    store.barrier();
    for (int alone = 0; alone < kWorkers; ++alone) {
      if (worker == alone) step(50);
      store.barrier();
    }
    step(worker);
    for (const NDArray& out : outs) EXPECT_EQ(out.to_vector<double>().front(), 0.5) << "worker " << worker;
  });
}

TEST_P(RingUneven, AFailedGradientHasNoPartInItsRound) {
  ClusterInProcess cluster(ring_of(2));
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray a = full(0, engine), b = full(0, engine);
    store.init({{"a", a}, {"b", b}});
    store.set_optimizer(optim::SGD{.lr = 1});
    for (int step = 0; step < 4; ++step) {
      const NDArray gradient = full(worker == 0 ? -1 : -3, engine);
      const bool fails = worker == 0 && step == 1;
      if (fails) fail(gradient);
      store.push_pull({{"a", gradient}, {"b", gradient}}, {{"a", a}, {"b", b}}, 1);
      store.step_end();
      if (fails)
        EXPECT_THROW(a.wait(), InvalidArgument);
      else
        a.wait();
    }
    for (const NDArray& weights : {a, b}) EXPECT_EQ(weights.to_vector<double>()[0], 9) << "worker " << worker;
  });
}

TEST_P(RingUneven, APullAfterAFailedPushFailsInsteadOfWaiting) {
  ClusterInProcess cluster(ring_of(1));
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = full(0, engine);
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 1});
    const StoreState first = store.save();
    const auto push = [&](bool fails) {
      const NDArray gradient = full(-1, engine);
      if (fails) fail(gradient);
      store.push("w", gradient);
    };
    for (const bool after_the_step : {true, false}) {
      push(true);
      store.pull("w", weight);
      if (after_the_step) store.step_end();
      ASSERT_THROW(weight.wait(), InvalidArgument);
      if (!after_the_step) store.step_end();
    }
    // The next push and the next load have nothing to do with it.
    push(false);
    store.step_end();
    store.pull("w", weight);
    EXPECT_EQ(weight.to_vector<double>()[0], 1);
    push(true);
    store.step_end();
    EXPECT_EQ(error_of_call([&] { store.load(first); }), "");
    EXPECT_EQ(weight.to_vector<double>()[0], 0);
  });
}

// Worker 1 pushes its part of the round when worker 0 has asked for the new rules.
TEST_P(RingUneven, NewRulesBeginWithTheNextRoundEverywhere) {
  ClusterInProcess cluster(ring_of(2));
  std::array<std::vector<double>, 2> weights;
  std::atomic<bool> asks = false;
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = full(0, engine);
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
    const auto step = [&] {
      store.push_pull({{"w", full(-1, engine)}}, {{"w", weight}}, 1);
      store.step_end();
    };
    step();
    weight.wait();
    if (worker == 1) {
      while (!asks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    step();
    if (worker == 1) weight.wait();
    asks = true;
    store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.9});
    step();
    weights[static_cast<std::size_t>(worker)] = weight.to_vector<double>();
  });
  EXPECT_NEAR(weights[0][0], 1 + 1.5 + (1 + 0.9 * 1.5), 1e-12);
  EXPECT_EQ(weights[0], weights[1]);
}

// Declares the key w with momentum 0.5. Returns what makes a step with the gradient -1.
std::function<void()> steps_with_momentum(KVStore& store, const NDArray& weight) {
  store.init({{"w", weight}});
  store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
  return [&store, weight] {
    store.push_pull({{"w", full(-1, weight.engine())}}, {{"w", weight}}, 1);
    store.step_end();
    weight.wait();
  };
}

// Worker 1 has no part in the second round, and asks for the new rules before that round closes.
TEST_P(RingUneven, NewRulesWaitForTheRoundsOfOtherWorkers) {
  ClusterInProcess cluster(ring_of(2));
  std::array<double, 2> weights{};
  std::atomic<bool> asks = false;
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = full(0, cluster.engine(worker));
    const auto step = steps_with_momentum(store, weight);
    step();
    if (worker == 1) {
      store.step_end();
      asks = true;
    } else {
      while (!asks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      step();
    }
    store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.9});
    store.barrier();
    store.pull("w", weight);
    weights[static_cast<std::size_t>(worker)] = weight.to_vector<double>()[0];
  });
  EXPECT_EQ(weights, (std::array{2.5, 2.5}));
}

// Worker 1 stands for a worker that enters when the others have met for their set_optimizer(), and have not set the
// rules yet: it makes no such call itself.
TEST_P(RingUneven, AWorkerThatEntersBeforeNewRulesAreSetGetsThem) {
  ClusterInProcess cluster(ring_of(2));
  std::array<double, 2> weights{};
  std::latch set{1};
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = full(0, cluster.engine(worker));
    const auto step = steps_with_momentum(store, weight);
    step();
    if (worker == 0) {
      store.set_optimizer(optim::SGD{.lr = 2, .momentum = 0.25});
      set.count_down();
    } else {
      store.barrier();
      set.wait();
    }
    step();
    weights[static_cast<std::size_t>(worker)] = weight.to_vector<double>()[0];
  });
  EXPECT_EQ(weights, (std::array{1 + 2 * 1.25, 1 + 2 * 1.25}));
}

// Worker 0 makes its call of set_optimizer() when worker 1 has already changed the rate.
TEST_P(RingUneven, ARateOutlivesTheSameOptimizerOfASlowerWorker) {
  ClusterInProcess cluster(ring_of(2));
  std::atomic<bool> changed = false;
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray a = full(0, engine), b = NDArray::full(Shape{70000}, 0, DType::kFloat64, {}, engine);
    store.init({{"a", a}, {"b", b}});
    while (worker == 0 && !changed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    store.set_optimizer(optim::SGD{.lr = 1});
    if (worker == 1) store.set_learning_rate(0.5);
    changed = true;
    store.push_pull({{"b", NDArray::full(b.shape(), -1, DType::kFloat64, {}, engine)}}, {{"b", b}}, 1);
    store.step_end();
    EXPECT_EQ(b.to_vector<double>(), std::vector<double>(70000, 0.5)) << "worker " << worker;
    // A new optimizer has its own rate, and a rate that is set then counts everywhere.
    store.set_optimizer(optim::SGD{.lr = 2});
    store.push_pull({{"a", full(-1, engine)}}, {{"a", a}}, 1);
    store.step_end();
    EXPECT_EQ(a.to_vector<double>()[0], 2);
    store.barrier();
    if (worker == 0) store.set_learning_rate(0.25);
    store.barrier();
    store.push_pull({{"a", full(-1, engine)}}, {{"a", a}}, 1);
    store.step_end();
    EXPECT_EQ(a.to_vector<double>()[0], 2.25);
  });
}

// A round is applied with one rate everywhere, whenever the other hears of it.
TEST_P(RingUneven, ARateSetInTheMiddleOfARoundIsTheSameEverywhere) {
  constexpr int kSteps = 60;
  ClusterInProcess cluster(ring_of(2));
  std::array<std::vector<double>, 2> weights;
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray a = full(0, engine), b = NDArray::full(Shape{70000}, 0, DType::kFloat64, {}, engine);
    store.init({{"a", a}, {"b", b}});
    store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
    for (int step = 0; step < kSteps; ++step) {
      store.push_pull({{"a", full(-1, engine)}}, {{"a", a}}, 1);
      if (step % 2 == worker) store.set_learning_rate(1 + step / 7.0);
      store.push_pull({{"b", NDArray::full(b.shape(), -1, DType::kFloat64, {}, engine)}}, {{"b", b}}, 1);
      store.step_end();
    }
    std::vector<double>& mine = weights[static_cast<std::size_t>(worker)];
    mine = b.to_vector<double>();
    mine.push_back(a.to_vector<double>()[0]);
  });
  EXPECT_TRUE(weights[0] == weights[1]);
  EXPECT_GT(weights[0].back(), 1.9 * kSteps);
}

INSTANTIATE_TEST_SUITE_P(Transports, RingUneven, testing::Values("inproc", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace paceline::test
