// Mode ring: all-reduce among the workers, and what it promises when one of them is lost.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>
#include <support/tolerance.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>

namespace paceline::test {
namespace {

using namespace std::chrono_literals;

NDArray full(std::int64_t size, double value, Engine& engine) {
  return NDArray::full(Shape{size}, value, DType::kFloat64, {}, engine);
}

// The mean gradient of a smooth function over the examples begin, begin + 1, ... end - 1.
template <class Real>
std::vector<Real> gradient_of(const std::vector<Real>& weights, int begin, int end) {
  std::vector<Real> gradient(weights.size(), 0);
  for (int example = begin; example < end; ++example) {
    std::minstd_rand random(static_cast<unsigned>(example % 64 + 1));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Real x = static_cast<Real>(random()) / static_cast<Real>(std::minstd_rand::max());
      gradient[i] += std::tanh(weights[i] - x) / static_cast<Real>(end - begin);
    }
  }
  return gradient;
}

struct Training {
  std::string mode = "ring";
  int workers = 2;
  int steps = 100;
  std::int64_t elements = 300;
  std::string transport = "inproc";
  bool faulty = false;
  bool shared = false;
  bool reuses_gradients = false;  // the arrays of gradients are written again as soon as the push is over
  Spec optimizer = optim::SGD{.lr = 0.3, .momentum = 0.9};
};

// Trains with 24 examples a step; the weights of every worker.
template <class Real>
std::vector<std::vector<Real>> train(const Training& training) {
  ClusterInProcess cluster({.mode = training.mode,
                            .workers = training.workers,
                            .servers = training.mode == "ring" ? 0 : 2,
                            .transport = training.transport,
                            .faulty = training.faulty,
                            .serial = false});
  std::vector<std::vector<Real>> result(static_cast<std::size_t>(training.workers));
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    // The values of rank 0 count. Many small keys and one that is cut.
    std::vector<std::vector<Real>> weights;
    for (int k = 0; k < 6; ++k) {
      const auto size = static_cast<std::size_t>(k == 0 ? training.elements : 7 * k);
      weights.emplace_back(size, static_cast<Real>(worker == 0 ? 0.1 * k : 77));
    }
    std::vector<NDArray> arrays;
    std::vector<InitValue> values;
    for (std::size_t k = 0; k < weights.size(); ++k) {
      arrays.push_back(
          NDArray::from<Real>(weights[k], Shape{static_cast<std::int64_t>(weights[k].size())}, {}, engine));
      values.push_back({.key = "key" + std::to_string(k), .value = arrays[k], .shared = training.shared});
    }
    store.init(values);
    store.set_optimizer(training.optimizer);
    const int part = 24 / training.workers;
    std::vector<NDArray> reused;
    for (const NDArray& array : arrays) reused.push_back(NDArray::zeros(array.shape(), array.dtype(), {}, engine));
    for (int step = 0; step < training.steps; ++step) {
      std::vector<PushItem> pushes;
      std::vector<PullItem> pulls;
      for (std::size_t k = 0; k < weights.size(); ++k) {
        weights[k] = arrays[k].to_vector<Real>();
        const int begin = step * 24 + worker * part;
        NDArray gradient =
            NDArray::from<Real>(gradient_of(weights[k], begin, begin + part), arrays[k].shape(), {}, engine);
        if (training.reuses_gradients) {
          reused[k].copy_from(gradient);
          gradient = reused[k];
        }
        pushes.push_back({values[k].key, gradient});
        pulls.push_back({values[k].key, arrays[k]});
      }
      store.push_pull(pushes, pulls, part);
      store.step_end();
      if (training.reuses_gradients)
        for (NDArray& gradient : reused) gradient.fill(1e6);
    }
    auto& mine = result[static_cast<std::size_t>(worker)];
    for (const NDArray& array : arrays)
      for (const Real w : array.to_vector<Real>()) mine.push_back(w);
    EXPECT_EQ(store.report().refused, 0);
  });
  return result;
}

TEST(Ring, EqualsOneProcessAndTheBitsOfDistSync) {
  constexpr std::int64_t kElements = 40;
  const auto one = train<double>({.workers = 1, .elements = kElements})[0];
  for (const int workers : {2, 4}) {
    SCOPED_TRACE(workers);
    const auto weights = train<double>({.workers = workers, .elements = kElements});
    EXPECT_LT(relative_difference(one, weights[0]), 1e-12);
    for (const auto& others : weights) EXPECT_EQ(others, weights[0]);
  }
  const auto three = train<double>({.workers = 3, .steps = 20, .elements = kElements});
  EXPECT_EQ(train<double>({.workers = 3, .steps = 20, .elements = kElements}), three);
  EXPECT_EQ(train<double>({.mode = "dist_sync", .workers = 3, .steps = 20, .elements = kElements}), three);
  const Spec plain = optim::SGD{.lr = 0.3, .weight_decay = 0.01};
  EXPECT_EQ(train<double>({.mode = "dist_sync", .workers = 3, .steps = 20, .elements = kElements, .optimizer = plain}),
            train<double>({.workers = 3, .steps = 20, .elements = kElements, .optimizer = plain}));
  const auto single = train<float>({.workers = 1, .steps = 10})[0];
  const auto four = train<float>({.workers = 4, .steps = 10});
  EXPECT_LT(relative_difference(single, four[0]), 1e-5);
  EXPECT_NE(single, train<float>({.workers = 1, .steps = 9})[0]);
}

// Two workers that share no memory send each other everything, and both sum.
TEST(Ring, TwoOverTheNetworkHaveTheBitsOfDistSync) {
  constexpr std::int64_t kElements = 150000;  // 1.2 MB
  for (const Spec& optimizer :
       {Spec(optim::SGD{.lr = 0.3, .momentum = 0.9}), Spec(optim::SGD{.lr = 0.3}), Spec(optim::Adam{.lr = 0.01})}) {
    SCOPED_TRACE(optimizer.text());
    const auto expected =
        train<double>({.mode = "dist_sync", .steps = 4, .elements = kElements, .optimizer = optimizer});
    for (const bool faulty : {false, true})
      EXPECT_EQ(train<double>({.steps = 4,
                               .elements = kElements,
                               .transport = "tcp",
                               .faulty = faulty,
                               .shared = faulty,
                               .optimizer = optimizer}),
                expected);
  }
  EXPECT_EQ(train<float>({.transport = "tcp", .shared = true}), train<float>({.mode = "dist_sync"}));
}

// A push is over when the other worker has the gradient: from then on its array may be written. ZeroMQ sends the bytes
// from the array itself.
TEST(Ring, TwoOverTheNetworkSendAGradientBeforeItsArrayIsWrittenAgain) {
  constexpr std::int64_t kElements = 150000;
  const Training training{.steps = 6, .elements = kElements, .transport = "tcp", .reuses_gradients = true};
  Training expected = training;
  expected.mode = "dist_sync";
  expected.transport = "inproc";
  const auto weights = train<double>(expected);
  for (int repetition = 0; repetition < 3; ++repetition) EXPECT_EQ(train<double>(training), weights);
}

// Each step sums 1 and 100 of two workers. `more`: outputs of worker 1 beside the first, which make it slower.
void expect_sums_of_two(ClusterOptions options, bool in_place, int more) {
  constexpr std::int64_t kElements = 300000;  // 2.4 MB
  options.mode = "ring:aggregate=sum";
  options.servers = 0;
  options.serial = false;
  ClusterInProcess cluster(options);
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray sum = full(kElements, 0, engine);
    NDArray gradient = in_place ? sum : full(kElements, 0, engine);
    std::vector<PullItem> outputs{{"x", sum}};
    for (int i = 0; i < more && worker == 1; ++i) outputs.push_back({"x", full(kElements, 0, engine)});
    store.init({{"x", sum}});
    store.set_optimizer(optim::Assign{});
    for (int step = 0; step < 10; ++step) {
      gradient.fill(worker == 0 ? 1 : 100);
      store.push_pull({{"x", gradient}}, outputs, 1);
      store.step_end();
      if (!in_place) gradient.fill(1e6);
      const std::vector<double> values = sum.to_vector<double>();
      EXPECT_EQ(std::count(values.begin(), values.end(), 101), kElements) << "worker " << worker << ", step " << step;
    }
  });
}

TEST(Ring, TwoOverASlowNetworkMayWriteTheirGradients) {
  expect_sums_of_two({.transport = "tcp", .faults = "throttle 20MB/s worker0->worker1 of ring_push"}, false, 0);
}

TEST(Ring, TwoOverTheNetworkAllReduceInPlace) {
  expect_sums_of_two({.transport = "tcp"}, true, 0);
  expect_sums_of_two({.transport = "tcp", .faults = "throttle 20MB/s worker0->worker1 of ring_push"}, true, 0);
}

// Workers that say to be on two hosts may still read each other's memory in place.
TEST(Ring, TwoThatLendEachOtherMemoryMayWriteTheirGradients) {
  expect_sums_of_two({.transport = "shm", .hosts = {"127.0.0.1", "127.0.0.2"}, .hosts_share_memory = true}, false, 12);
  expect_sums_of_two({.transport = "inproc", .hosts = {"a", "b"}}, false, 12);
}

TEST(Ring, LargeKeysAreCutOverBothTransportsAndUnderFaults) {
  constexpr std::int64_t kElements = 150000;  // 1.2 MB
  const auto expected = train<double>({.workers = 3, .steps = 2, .elements = kElements});
  EXPECT_EQ(expected[1], expected[0]);
  EXPECT_EQ(train<double>({.workers = 3, .steps = 2, .elements = kElements, .transport = "tcp"}), expected);
  EXPECT_EQ(train<double>({.workers = 3, .steps = 2, .elements = kElements, .faulty = true}), expected);
  const Spec plain = optim::SGD{.lr = 0.3};
  const auto stateless = train<double>({.workers = 3, .steps = 2, .elements = kElements, .optimizer = plain});
  for (const std::string transport : {"tcp", "shm"})
    EXPECT_EQ(
        train<double>({.workers = 3, .steps = 2, .elements = kElements, .transport = transport, .optimizer = plain}),
        stateless);
  EXPECT_EQ(train<double>({.workers = 3, .steps = 2, .elements = kElements, .faulty = true, .optimizer = plain}),
            stateless);
  const auto small = train<double>({.workers = 3, .steps = 6, .elements = 50});
  EXPECT_EQ(train<double>({.workers = 3, .steps = 6, .elements = 50, .transport = "tcp", .faulty = true}), small);
}

TEST(Ring, IsAnAllReduceWithoutADescent) {
  constexpr std::int64_t kElements = 100000;  // two pieces
  for (const std::string transport : {"inproc", "tcp", "shm"}) {
    SCOPED_TRACE(transport);
    ClusterInProcess cluster({.mode = "ring", .workers = 3, .servers = 0, .transport = transport, .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray sum = full(kElements, 7, engine), first = full(kElements, 0, engine);
      store.init({{"sum", sum}});
      store.set_optimizer(optim::Assign{});
      for (int i = 1; i <= 3; ++i) {
        store.push_pull({{"sum", full(kElements, 3.0 * i * (1 + worker), engine)}}, {{"sum", sum}});
        store.step_end();
        EXPECT_EQ(sum.to_vector<double>(), std::vector<double>(kElements, 6.0 * i));
        // What the store keeps is its own.
        sum.copy_from(full(kElements, -1, engine));
        store.pull("sum", first);
        EXPECT_EQ(first.to_vector<double>(), std::vector<double>(kElements, 6.0 * i));
      }
    });
  }
}

// The weights may lie in a shared array; pulls alone change it.
TEST(Ring, SharedArraysHoldWhatWasPulledIntoThem) {
  constexpr std::int64_t kElements = 100000;
  ClusterInProcess cluster({.mode = "ring", .workers = 2, .servers = 0, .transport = "tcp", .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray shared = full(kElements, 0, engine), other = full(kElements, 0, engine);
    const auto is = [&](const NDArray& array, double value) {
      return array.to_vector<double>() == std::vector<double>(kElements, value);
    };
    store.init({{.key = "w", .value = shared, .shared = true}});
    store.set_optimizer(optim::SGD{.lr = 1});
    const NDArray one = full(kElements, -1, engine);
    const auto step = [&](const NDArray& out) {
      if (out.is_none())
        store.push("w", one);
      else
        store.push_pull({{"w", one}}, {{"w", out}});
      store.step_end();
    };
    step(shared);
    EXPECT_TRUE(is(shared, 1));
    step(other);
    EXPECT_TRUE(is(other, 2));
    EXPECT_TRUE(is(shared, 1));
    step(shared);
    step({});
    store.pull("w", other);
    EXPECT_TRUE(is(other, 4));
    EXPECT_TRUE(is(shared, 3));
    store.pull("w", shared);
    EXPECT_TRUE(is(shared, 4));
    step(shared);
    const StoreState state = store.save();
    step(shared);
    EXPECT_TRUE(is(shared, 6));
    store.load(state);
    EXPECT_TRUE(is(shared, 5));
    step(shared);
    EXPECT_TRUE(is(shared, 6));
    // Anybody else's writes would make the workers differ.
    shared.copy_from(other);
    for (const std::string& error :
         {error_of_call([&] { store.pull("w", other); }), error_of_call([&] { store.push("w", other); })})
      EXPECT_NE(error.find("the array of key 'w' was written"), std::string::npos) << error;
    store.load(state);
    step(shared);
    EXPECT_TRUE(is(shared, 6));
  });
}

// Keys in one block of memory cannot be told apart: none of them is shared.
TEST(Ring, ViewsOfOneArrayAreNotShared) {
  ClusterInProcess cluster({.mode = "ring", .workers = 2, .servers = 0, .transport = "tcp", .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    constexpr std::int64_t kHalf = 70000;
    const NDArray both = full(2 * kHalf, 0, engine);
    const NDArray a = both.narrow(0, 0, kHalf), b = both.narrow(0, kHalf, 2 * kHalf);
    store.init({{.key = "a", .value = a, .shared = true}, {.key = "b", .value = b, .shared = true}});
    store.set_optimizer(optim::SGD{.lr = 1});
    for (int i = 0; i < 3; ++i) {
      store.push_pull({{"a", full(kHalf, -1, engine)}}, {{"a", a}});
      store.push_pull({{"b", full(kHalf, -2, engine)}}, {{"b", b}});
      store.step_end();
    }
    EXPECT_EQ(a.to_vector<double>(), std::vector<double>(kHalf, 3));
    EXPECT_EQ(b.to_vector<double>(), std::vector<double>(kHalf, 6));
  });
}

TEST(Ring, MeansAreWeightedByExamples) {
  ClusterInProcess cluster({.mode = "ring", .workers = 3, .servers = 0, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = full(5, 0, engine), statistic = full(1, 0, engine);
    store.init({{"w", weight}, {"mean", statistic, true}});
    store.set_optimizer(optim::SGD{.lr = 1});
    store.push_pull({{"w", full(5, worker, engine)}, {"mean", full(1, worker, engine)}},
                    {{"w", weight}, {"mean", statistic}}, 1 + worker);
    store.step_end();
    EXPECT_NEAR(weight.to_vector<double>()[4], -(0 * 1 + 1 * 2 + 2 * 3) / 6.0, 1e-15);
    EXPECT_EQ(statistic.item<double>(), 1);
  });
}

// Keys that not everybody pushes, in different steps; the same updates at the same steps everywhere.
TEST(Ring, KeysThatAreNotPushedInEveryStep) {
  constexpr int kSteps = 12, kWorkers = 3;
  std::array<std::vector<double>, kWorkers> seen;
  ClusterInProcess cluster({.mode = "ring", .workers = kWorkers, .servers = 0, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray often = full(1, 0, engine), seldom = full(5000, 0, engine), never = full(3, 7, engine);
    store.init({{"often", often}, {"seldom", seldom}, {"never", never}});
    store.set_optimizer(optim::SGD{.lr = 1});
    const NDArray one = full(1, -1, engine), ones = full(5000, -1, engine);
    for (int step = 1; step <= kSteps; ++step) {
      store.push("often", one);
      if (step % 3 == worker) store.push("seldom", ones);
      store.step_end();
      store.pull("often", often);
      EXPECT_EQ(often.item<double>(), step);
      if (step % 4 != 0) continue;
      store.pull("seldom", seldom);
      store.pull("never", never);
      seen[static_cast<std::size_t>(worker)].push_back(seldom.to_vector<double>()[4999]);
      EXPECT_EQ(never.to_vector<double>(), std::vector<double>(3, 7));
    }
    store.barrier();
    store.pull("seldom", seldom);
    EXPECT_EQ(seldom.to_vector<double>(), std::vector<double>(5000, kSteps));
    EXPECT_EQ(store.report().refused, 0);
  });
  for (const auto& values : seen) EXPECT_EQ(values, (std::vector<double>{4, 8, 12}));
}

struct Scalar {
  NDArray weight;
  Engine* engine;
};

Scalar start(ClusterInProcess& cluster, int worker, KVStore& store) {
  Engine& engine = cluster.engine(worker);
  const Scalar scalar{full(1, 0, engine), &engine};
  store.init({{"w", scalar.weight}});
  store.set_optimizer(optim::SGD{.lr = 1});
  return scalar;
}

void step(KVStore& store, const Scalar& scalar, double gradient = -1) {
  store.push_pull({{"w", full(1, gradient, *scalar.engine)}}, {{"w", scalar.weight}});
  store.step_end();
  scalar.weight.wait();
}

TEST(Ring, WorkersThatRunOutOfBatchesHoldNobodyBack) {
  ClusterInProcess cluster({.mode = "ring", .workers = 3, .servers = 0, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    const Scalar scalar = start(cluster, worker, store);
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int i = 0; i < 4 + 3 * worker; ++i) step(store, scalar);
      store.barrier();
    }
    store.pull("w", scalar.weight);
    EXPECT_EQ(scalar.weight.item<double>(), 3 * 10);
    store.barrier();
    // The last one is alone for a while, after the others have left.
    for (int i = 0; i < worker; ++i) step(store, scalar);
    store.finish();
  });
}

void workers_that_wait_for_data_come_back_into_the_rounds(const std::string& transport) {
  ClusterInProcess cluster({.mode = "ring", .workers = 2, .servers = 0, .transport = transport, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    const Scalar scalar = start(cluster, worker, store);
    Backend& exchange = store.backend();
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      const std::int64_t steps = worker == 0 ? 2 : 9;  // positions 0..1 and 2..10
      const std::int64_t first = worker == 0 ? 0 : 2;
      exchange.data_part(epoch);
      exchange.data_begin(epoch, {.mine = {{first, first + steps}}, .all = {{0, 11}}});
      for (std::int64_t position = first; position < first + steps; ++position) {
        step(store, scalar);
        exchange.data_commit(epoch, {{position, position + 1}});
      }
      EXPECT_TRUE(exchange.data_take_over(epoch, true).empty());
      if (epoch != 1) store.barrier();  // without one it goes on from where the others are
      EXPECT_EQ(exchange.data_committed(epoch), (PositionRanges{{0, 11}}));
    }
    store.barrier();
    store.pull("w", scalar.weight);
    const double weight = scalar.weight.item<double>();
    EXPECT_GE(weight, 27);
    EXPECT_LE(weight, 29);
    EXPECT_EQ(store.report().refused, 0);
  });
}

TEST(Ring, WorkersThatWaitForDataComeBackIntoTheRounds) {
  for (const char* transport : {"inproc", "tcp"}) workers_that_wait_for_data_come_back_into_the_rounds(transport);
}

void one_worker_sets_the_learning_rate_for_all(const std::string& transport) {
  ClusterInProcess cluster({.mode = "ring", .workers = 2, .servers = 0, .transport = transport, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    const Scalar scalar = start(cluster, worker, store);
    step(store, scalar);
    store.barrier();
    if (worker == 1) store.set_learning_rate(0.25);
    store.barrier();
    step(store, scalar);
    EXPECT_EQ(scalar.weight.item<double>(), 1.25);
  });
}

TEST(Ring, OneWorkerSetsTheLearningRateForAll) {
  for (const char* transport : {"inproc", "tcp"}) one_worker_sets_the_learning_rate_for_all(transport);
}

// The survivors agree on every bit: an interrupted round is applied by all or by none, with the same contributions.
void goes_on_after_a_loss(double factor) {
  for (const int killed : {0, 1, 2}) {
    SCOPED_TRACE(killed);
    ClusterInProcess cluster({.mode = "ring", .workers = 3, .servers = 0, .serial = false});
    std::array<std::vector<double>, 3> weights;
    std::array<std::int64_t, 3> leads{};
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      constexpr std::int64_t kElements = 500000;  // several pieces, so that every worker owns some
      const NDArray large = full(kElements, 0, engine), small = full(3, 0, engine);
      store.init({{"large", large}, {"small", small}});
      store.set_optimizer(optim::SGD{.lr = 1, .momentum = factor});
      for (int i = 0; i < 8; ++i) {
        const double mine = -(1.0 + worker) * (i + 1);
        store.push_pull({{"large", full(kElements, mine, engine)}, {"small", full(3, mine, engine)}},
                        {{"large", large}, {"small", small}}, 1 + worker);
        store.step_end();
        if (worker == killed && i == 3) return cluster.kill_worker(worker);  // in the middle of a round
        large.wait();
        small.wait();
      }
      store.barrier();
      store.pull("large", large);
      store.pull("small", small);
      auto& result = weights[static_cast<std::size_t>(worker)];
      result = large.to_vector<double>();
      for (const double w : small.to_vector<double>()) result.push_back(w);
      leads[static_cast<std::size_t>(worker)] = store.backend().leads();
      store.barrier();
      store.finish();
    });
    const std::size_t first = killed == 0 ? 1 : 0, second = killed == 2 ? 1 : 2;
    EXPECT_EQ(weights[first], weights[second]);
    EXPECT_EQ(leads[first], 1);
    // Each piece took the round of the loss with or without the one that was lost.
    const auto expected = [&](bool with) {
      double weight = 0, momentum = 0;
      for (int i = 0; i < 8; ++i) {
        double sum = 0, examples = 0;
        for (int worker = 0; worker < 3; ++worker) {
          if (worker == killed && (i > 3 || (i == 3 && !with))) continue;
          sum += (1.0 + worker) * (1.0 + worker) * (i + 1);
          examples += 1 + worker;
        }
        momentum = factor * momentum + sum / examples;
        weight += momentum;
      }
      return weight;
    };
    ASSERT_FALSE(weights[first].empty());
    for (const double w : weights[first]) {
      if (std::abs(w - expected(true)) > 1e-9) {
        ASSERT_NEAR(w, expected(false), 1e-9);
      }
    }
  }
}

TEST(Ring, GoesOnAfterALoss) { goes_on_after_a_loss(0.5); }
TEST(Ring, GoesOnAfterALossWithoutState) { goes_on_after_a_loss(0); }

// The lost worker is still there when the leader has the older weights and the others have the newer ones.
TEST(Ring, LoadedWeightsOutliveALossDuringTheLoad) {
  ClusterInProcess cluster({.mode = "ring", .workers = 3, .servers = 0, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    const Scalar scalar = start(cluster, worker, store);
    step(store, scalar);
    const StoreState state = store.save();
    for (int i = 0; i < 3; ++i) step(store, scalar);
    if (worker == 2) {
      store.barrier();  // the first one of load()
      return cluster.kill_worker(worker);
    }
    store.load(state);
    EXPECT_EQ(scalar.weight.item<double>(), 1);
    step(store, scalar);
    EXPECT_EQ(scalar.weight.item<double>(), 2);
  });
}

TEST(Ring, CheckpointsAreReadByOtherModesAndBack) {
  const Spec optimizer = optim::SGD{.lr = 0.125, .momentum = 0.5};
  const auto engine = make_threaded_engine();
  const auto begin = [&](KVStore& store) {
    const NDArray weight = full(200000, 0, *engine);
    store.init({{"large", weight}, {"small", full(4, 1, *engine)}});
    store.set_optimizer(optimizer);
    return weight;
  };
  const auto train_more = [&](KVStore& store, const NDArray& weight) {
    store.push_pull({{"large", full(200000, 1, *engine)}}, {{"large", weight}});
    store.step_end();
    return weight.to_vector<double>();
  };
  StoreState state;
  std::vector<double> expected;
  const auto run = [&](const std::string& mode, int workers, int servers, bool loads) {
    SCOPED_TRACE(mode);
    std::vector<double> result;
    ClusterInProcess cluster({.mode = mode, .workers = workers, .servers = servers, .engine = engine.get()});
    cluster.run([&](int worker, KVStore& store) {
      const NDArray weight = begin(store);
      if (loads) store.load(worker == 0 ? state : StoreState{});
      train_more(store, weight);
      const auto after = train_more(store, weight);
      if (worker == 0) result = after;
      if (loads) return;
      StoreState saved = store.save();
      EXPECT_EQ(saved.arrays.empty(), worker != 0);
      if (worker == 0) state = std::move(saved);
    });
    return result;
  };
  run("ring", 3, 0, false);
  const auto local = [&] {
    StoreOptions options;
    options.engine = engine.get();
    const auto store = KVStore::create("local", options);
    const NDArray weight = begin(*store);
    store->load(state);
    train_more(*store, weight);
    return train_more(*store, weight);
  };
  expected = local();
  EXPECT_EQ(run("ring", 2, 0, true), expected);
  EXPECT_EQ(run("dist_sync", 2, 2, true), expected);
  run("dist_sync", 2, 1, false);
  expected = local();
  EXPECT_EQ(run("ring", 3, 0, true), expected);

  // A state that does not fit is refused at every worker, and the job goes on.
  ClusterInProcess cluster({.mode = "ring", .workers = 2, .servers = 0, .engine = engine.get()});
  std::atomic<int> refusals = 0;
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = full(2, 0, *engine);
    store.init({{"other", weight}});
    store.set_optimizer(optim::SGD{});
    const std::string error = error_of_call([&] { store.load(worker == 0 ? state : StoreState{}); });
    if (error.find("which this job's network does not have") != std::string::npos) ++refusals;
    store.push_pull({{"other", full(2, 1, *engine)}}, {{"other", weight}});
    weight.wait();
  });
  EXPECT_EQ(refusals, 2);
}

TEST(Ring, SaysWhatItDoesNotTake) {
  ClusterConfig config;
  config.workers = 1;
  config.servers = 1;
  const auto error = [&](const std::string& mode) { return error_of_call([&] { KVStore::join(config, mode); }); };
  EXPECT_NE(error("ring").find("mode ring has no servers"), std::string::npos) << error("ring");
  EXPECT_NE(error("ring:staleness=none").find("staleness"), std::string::npos);
  config.servers = 0;
  EXPECT_NE(error("dist_sync").find("needs servers"), std::string::npos) << error("dist_sync");
  EXPECT_NE(error("dist_async").find("needs servers"), std::string::npos);
  ClusterInProcess cluster({.mode = "ring", .workers = 1, .servers = 0});
  KVStore& store = cluster.worker(0);
  const Scalar scalar = start(cluster, 0, store);
  store.push("w", full(1, 1, *scalar.engine));
  const std::string twice = error_of_call([&] { store.push("w", full(1, 1, *scalar.engine)); });
  EXPECT_NE(twice.find("pushed key 'w' twice in step 0"), std::string::npos) << twice;
  EXPECT_THROW(store.push("nowhere", scalar.weight), InvalidArgument);
  EXPECT_THROW(store.push("w", full(2, 1, *scalar.engine)), InvalidArgument);
}

}  // namespace
}  // namespace paceline::test
