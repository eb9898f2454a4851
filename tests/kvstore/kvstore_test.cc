// The store through real servers: versions, exactly-once, convergence limits, staleness policies.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <atomic>
#include <cmath>
#include <random>

namespace paceline::test {
namespace {

NDArray array_of(std::vector<double> values, Engine& engine) {
  const auto size = static_cast<std::int64_t>(values.size());
  return NDArray::from<double>(values, Shape{size}, {}, engine);
}

// Initialises one float64 key with `values` at every worker and sets the optimizer.
std::vector<NDArray> start(ClusterInProcess& cluster, const std::vector<double>& values, const Spec& optimizer) {
  std::vector<NDArray> weights(static_cast<std::size_t>(cluster.workers()));
  cluster.run([&](int worker, KVStore& store) {
    NDArray& weight = weights[static_cast<std::size_t>(worker)];
    weight = array_of(values, cluster.engine(worker));
    store.init({{"w", weight}});
    store.set_optimizer(optimizer);
  });
  return weights;
}

TEST(Store, AWorkerThatCannotJoinThrowsAndLeavesNothingBehind) {
  ClusterConfig config;
  config.transport = "inproc";
  config.scheduler_host = "nobody listens here";
  config.servers = 2;
  config.workers = 1;
  config.start_deadline_seconds = 0.3;
  EXPECT_THROW(KVStore::join(config, "dist_async"), NetworkError);
}

TEST(Store, RefusesNamesThatACheckpointCouldNotTellApart) {
  const auto store = KVStore::create("local");
  EXPECT_THROW(store->init({{"layer:weight", NDArray::zeros({1})}}), InvalidArgument);
  EXPECT_THROW(store->init({{"", NDArray::zeros({1})}}), InvalidArgument);
}

TEST(Store, RoundTripOverEveryTransport) {
  for (const char* transport : {"inproc", "tcp", "shm"}) {
    for (const char* mode : {"dist_async:staleness=none", "dist_sync"}) {
      SCOPED_TRACE(std::string(transport) + " " + mode);
      ClusterInProcess cluster({.mode = mode, .transport = transport, .serial = false});
      cluster.run([&](int worker, KVStore& store) {
        Engine& engine = cluster.engine(worker);
        // The values of rank 0 count.
        const NDArray small = array_of({worker + 1.0, 2, 3}, engine);
        const NDArray large = NDArray::full(Shape{100000}, worker, DType::kFloat32, {}, engine);
        store.init({{"small", small}, {"large", large}});
        EXPECT_EQ(small.to_vector<double>(), (std::vector<double>{1, 2, 3}));
        EXPECT_EQ(large.to_vector<float>(), std::vector<float>(100000, 0));
        store.set_optimizer(optim::SGD{.lr = 0.5});
        const NDArray g1 = array_of({1, 1, 1}, engine),
                      g2 = NDArray::full(Shape{100000}, 2, DType::kFloat32, {}, engine);
        store.push_pull({{"small", g1}, {"large", g2}}, {{"small", small}, {"large", large}});
        store.step_end(1);
        large.wait();
        store.barrier();
        store.pull("small", small);
        store.pull("large", large);
        const double updates = std::string(mode) == "dist_sync" ? 1 : 2;
        EXPECT_EQ(small.to_vector<double>(),
                  (std::vector<double>{1 - 0.5 * updates, 2 - 0.5 * updates, 3 - 0.5 * updates}));
        EXPECT_EQ(large.to_vector<float>(), std::vector<float>(100000, static_cast<float>(-updates)));
        EXPECT_EQ(store.size(), 2);
      });
    }
  }
}

// One push_pull of worker `index`, done when it returns.
double push_pull(ClusterInProcess& cluster, int index, const NDArray& weight, double gradient) {
  KVStore& store = cluster.worker(index);
  store.push_pull({{"w", array_of({gradient}, cluster.engine(index))}}, {{"w", weight}});
  store.step_end(1);
  return weight.item<double>();
}

// T1.3: three workers pull w = 1, then push g = 2 in turn. With the weights that each worker pulled the third push is
// compensated for two updates.
TEST(Store, DelayCompensationUsesTheWeightsEachWorkerPulled) {
  struct Case {
    const char* staleness;
    std::vector<double> expected;
  };
  const std::vector<Case> cases = {
      {"delay_compensated,adaptive=0,lambda=0.5,clip=0", {0.8, 0.64, 0.512}},
      {"delay_compensated,lambda=2,clip=0", {0.8, 0.8 - 0.1 * (2 - 2.562050)}},
      {"delay_compensated,lambda=2,clip=1", {0.8, 0.8}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.staleness);
    ClusterInProcess cluster({.mode = std::string("dist_async:staleness=") + test.staleness, .workers = 3});
    const auto weights = start(cluster, {1}, optim::SGD{.lr = 0.1});
    for (std::size_t i = 0; i < test.expected.size(); ++i)
      EXPECT_NEAR(push_pull(cluster, static_cast<int>(i), weights[i], 2), test.expected[i], 1e-6);
  }
}

// T1.1: with atomic push_pull, sum of the delays + sum of the ages of what the workers hold is (M - 1) N, always.
TEST(Store, DelaysAndAgesObeyTheVersionIdentity) {
  constexpr int kWorkers = 5;
  ClusterInProcess cluster({.workers = kWorkers});
  const auto weights = start(cluster, {0}, optim::SGD{.lr = 1});
  std::mt19937 random(7);
  std::vector<std::int64_t> pulled(kWorkers, 0);
  std::int64_t delays = 0;
  for (std::int64_t n = 1; n <= 300; ++n) {
    const int worker = std::discrete_distribution<int>({1, 1, 2, 3, 10})(random);
    // Each push subtracts 1: the weight is minus the version.
    const auto version = static_cast<std::int64_t>(-push_pull(cluster, worker, weights[worker], 1));
    ASSERT_EQ(version, n);
    delays += n - 1 - pulled[static_cast<std::size_t>(worker)];
    pulled[static_cast<std::size_t>(worker)] = n;
    std::int64_t ages = 0;
    for (const std::int64_t seen : pulled) ages += n - seen;
    ASSERT_EQ(delays + ages, (kWorkers - 1) * n);
    if (n % 100 != 0) continue;
    const Histogram histogram = cluster.worker(0).report().all_delays();
    std::int64_t sum = 0;
    for (const auto& [delay, count] : histogram.counts()) sum += delay * count;
    EXPECT_EQ(histogram.count(), n);
    EXPECT_EQ(sum, delays);
  }
}

// log |w| per step of round-robin workers, from the middle to the end.
double growth(int tau, double rate, int steps, bool* died) {
  ClusterInProcess cluster({.workers = tau + 1, .servers = 1});
  const auto weights = start(cluster, {1}, optim::SGD{.lr = rate});
  double middle = 0, end = 0, largest = 0;
  const int window = 8 * (tau + 1);
  for (int step = 0; step < steps; ++step) {
    const int worker = step % (tau + 1);
    const double w = push_pull(cluster, worker, weights[worker], weights[worker].item<double>());
    *died = std::abs(w) < 1e-280 || std::abs(w) > 1e280;
    if (*died) return w > 1 ? 1 : -1;
    largest = std::max(largest, std::abs(w));
    if ((step + 1) % window == 0 || step + 1 == steps) {
      if (step < steps / 2) middle = largest;
      end = largest;
      largest = 0;
    }
  }
  return std::log(end / middle);
}

// T1.2: plain asynchronous SGD on w^2 / 2 under a constant delay tau is stable below 2 sin(pi / (2 (2 tau + 1))).
TEST(Store, ConstantDelayIsStableUpToTheExactLimit) {
  for (const int tau : {1, 3, 7}) {
    const double limit = 2 * std::sin(M_PI / (2 * (2 * tau + 1)));
    const int steps = 600 * (tau + 1);
    bool died = false;
    EXPECT_LT(growth(tau, 0.99 * limit, steps, &died), -0.1) << "tau " << tau;
    EXPECT_GT(growth(tau, 1.01 * limit, steps, &died), 0.1) << "tau " << tau;
  }
}

TEST(Store, ConstantDelayConvergesAtTheBestRate) {
  for (const int tau : {1, 3, 7}) {
    const double best = std::pow(tau, tau) / std::pow(tau + 1, tau + 1);
    ClusterInProcess cluster({.workers = tau + 1, .servers = 1});
    const auto weights = start(cluster, {1}, optim::SGD{.lr = best});
    double before = 1, after = 1;
    const int steps = 60 * (tau + 1);
    for (int step = 0; step < steps; ++step) {
      before = after;
      const int worker = step % (tau + 1);
      after = push_pull(cluster, worker, weights[worker], weights[worker].item<double>());
    }
    EXPECT_NEAR(after / before, tau / (tau + 1.0), 0.02 * tau / (tau + 1.0)) << "tau " << tau;
  }
}

// T1.3c: one worker has no delay, so every policy is plain SGD, and dana is NAG, bit for bit.
TEST(Store, EveryPolicyIsTheOptimizerItselfForOneWorker) {
  const auto run = [](const std::string& staleness, const Spec& optimizer) {
    ClusterInProcess cluster({.mode = "dist_async:staleness=" + staleness, .workers = 1, .servers = 1});
    const NDArray weight = start(cluster, {0.5, -2, 3}, optimizer)[0];
    std::mt19937 random(11);
    std::normal_distribution<double> normal;
    for (int step = 0; step < 1000; ++step) {
      const NDArray gradient = array_of({normal(random), normal(random), normal(random)}, cluster.engine(0));
      cluster.worker(0).push_pull({{"w", gradient}}, {{"w", weight}});
      cluster.worker(0).step_end(1);
    }
    return weight.to_vector<double>();
  };
  const Spec sgd = optim::SGD{.lr = 0.01, .weight_decay = 0.001};
  const Spec nag = optim::SGD{.lr = 0.01, .momentum = 0.9, .nesterov = true, .weight_decay = 0.001};
  const auto plain = run("none", sgd), nesterov = run("none", nag);
  for (const auto& [policy, make] : staleness_catalog().entries()) {
    if (policy == "dana") continue;
    EXPECT_EQ(run(policy, sgd), plain) << policy;
    EXPECT_EQ(run(policy, nag), nesterov) << policy;
  }
  EXPECT_EQ(run("dana", nag), nesterov);
  EXPECT_EQ(run("dana+gap_aware", nag), nesterov);
}

// T1.5: DANA-Slim through the real servers equals DANA-Zero, computed here.
TEST(Store, DanaSlimEqualsDanaZero) {
  constexpr int kWorkers = 8, kSize = 20, kSteps = 5000;
  constexpr double kRate = 0.01, kMomentum = 0.9;
  ClusterInProcess cluster({.mode = "dist_async:staleness=dana", .workers = kWorkers});
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::vector<double> initial(kSize), curvature(kSize);
  for (double& w : initial) w = normal(random);
  for (int i = 0; i < kSize; ++i) curvature[static_cast<std::size_t>(i)] = 0.05 + i * 0.05;
  const auto weights = start(cluster, initial, optim::SGD{.lr = kRate, .momentum = kMomentum});

  std::vector<double> w = initial, sum(kSize, 0);
  std::vector<std::vector<double>> velocity(kWorkers, sum), sent(kWorkers, initial);
  double largest = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto worker = static_cast<std::size_t>(random() % kWorkers);
    std::vector<double> gradient(kSize), oracle_gradient(kSize);
    const std::vector<double> held = weights[worker].to_vector<double>();
    for (std::size_t i = 0; i < kSize; ++i) {
      gradient[i] = curvature[i] * held[i];
      oracle_gradient[i] = curvature[i] * sent[worker][i];
    }
    cluster.worker(static_cast<int>(worker))
        .push_pull({{"w", array_of(gradient, cluster.engine(static_cast<int>(worker)))}}, {{"w", weights[worker]}});
    const std::vector<double> now = weights[worker].to_vector<double>();
    for (std::size_t i = 0; i < kSize; ++i) {
      double& v = velocity[worker][i];
      sum[i] -= v;
      v = kMomentum * v + oracle_gradient[i];
      sum[i] += v;
      w[i] -= kRate * v;
      sent[worker][i] = w[i] - kRate * kMomentum * sum[i];
      largest = std::max(largest, std::abs(sent[worker][i] - now[i]));
    }
  }
  EXPECT_LT(largest, 1e-12);
}

// Counters are exact whatever the network loses, repeats and reorders.
TEST(Store, EveryPushIsAppliedExactlyOnceOverABadNetwork) {
  constexpr int kWorkers = 3, kPushes = 12;
  for (const char* mode : {"dist_async:staleness=none", "dist_async:staleness=none,bound=2", "dist_sync"}) {
    for (const char* transport : {"inproc", "tcp", "shm"}) {
      if (std::string(transport) == "tcp" && std::string(mode) != "dist_async:staleness=none") continue;
      SCOPED_TRACE(std::string(transport) + " " + mode);
      ClusterInProcess cluster(
          {.mode = mode, .workers = kWorkers, .transport = transport, .faulty = true, .serial = false});
      cluster.run([&](int worker, KVStore& store) {
        Engine& engine = cluster.engine(worker);
        const NDArray a = array_of({0}, engine), b = NDArray::zeros(Shape{20000}, DType::kFloat64, {}, engine);
        store.init({{"a", a}, {"b", b}});
        store.set_optimizer(optim::SGD{.lr = 1});
        const NDArray one = array_of({-1}, engine), ones = NDArray::full(Shape{20000}, -1, DType::kFloat64, {}, engine);
        for (int i = 0; i < kPushes; ++i) {
          if (i % 2 == 0) {
            store.push_pull({{"a", one}, {"b", ones}}, {{"a", a}, {"b", b}});
          } else {
            store.push("a", one);
            store.push("b", ones);
            store.pull("a", a);
            store.pull("b", b);
          }
          store.step_end(1);
        }
        b.wait();
        store.barrier();
        store.pull("a", a);
        store.pull("b", b);
        // In a round the mean counts, which is one push.
        const double expected = kPushes * (std::string(mode) == "dist_sync" ? 1 : kWorkers);
        EXPECT_EQ(a.item<double>(), expected);
        EXPECT_EQ(b.to_vector<double>(), std::vector<double>(20000, expected));
      });
    }
  }
}

TEST(Store, LearningRateIsSetEverywhereWhenTheCallReturns) {
  ClusterInProcess cluster({});
  const auto weights = start(cluster, {0, 0}, optim::SGD{.lr = 1});
  cluster.worker(1).set_learning_rate(0.25);
  cluster.worker(0).push_pull({{"w", array_of({1, 1}, cluster.engine(0))}}, {{"w", weights[0]}});
  EXPECT_EQ(weights[0].to_vector<double>(), (std::vector<double>{-0.25, -0.25}));
}

TEST(Store, TwoJobsDoNotMeet) {
  ClusterInProcess first({}), second({});
  const auto a = start(first, {1}, optim::SGD{.lr = 1}), b = start(second, {1}, optim::SGD{.lr = 1});
  EXPECT_EQ(push_pull(first, 0, a[0], 1), 0);
  EXPECT_EQ(push_pull(second, 0, b[0], 2), -1);
  EXPECT_EQ(push_pull(first, 1, a[1], 1), -1);
}

TEST(Store, AveragesHoldTheMeanOverTheWorkers) {
  for (const char* mode : {"dist_async", "dist_sync"}) {
    ClusterInProcess cluster({.mode = mode, .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      const NDArray statistic = array_of({0}, cluster.engine(worker));
      store.init({{"mean", statistic, true}});
      store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9});
      store.push("mean", array_of({worker * 2.0}, cluster.engine(worker)));
      store.step_end(1);
      statistic.wait();
      store.barrier();
      store.pull("mean", statistic);
      EXPECT_EQ(statistic.item<double>(), 1) << mode;
    });
  }
}

// A worker's momentum of a large key travels in pieces.
TEST(Store, LargeStateOfAWorkerIsSavedAndLoadedWhole) {
  StoreState saved;
  const Shape shape{1500, 2000};
  std::vector<float> gradient(static_cast<std::size_t>(shape.size()));
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 65521);
  const auto velocity_in = [](const StoreState& state) {
    for (const auto& [name, array] : state.arrays)
      if (name == "worker0:w/velocity") return array;
    return NDArray();
  };
  for (const bool load : {false, true}) {
    ClusterInProcess cluster({.mode = "dist_async:staleness=dana", .workers = 1, .servers = 1});
    cluster.run([&](int, KVStore& store) {
      const NDArray weight = NDArray::zeros(shape, DType::kFloat32, {}, cluster.engine(0));
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.5});
      if (load)
        store.load(saved);
      else
        store.push_pull({{"w", NDArray::from(gradient, shape, {}, cluster.engine(0))}}, {{"w", weight}});
      store.step_end(1);
      saved = store.save();
      const NDArray velocity = velocity_in(saved);
      ASSERT_EQ(velocity.shape(), shape);
      EXPECT_TRUE(velocity.to_vector<float>() == gradient);
      // Arrays belong to the engine of a cluster that is about to end.
      for (auto& [name, array] : saved.arrays) {
        const std::vector<float> values = array.to_vector<float>();
        array = NDArray::from(values, array.shape());
      }
    });
  }
}

}  // namespace
}  // namespace paceline::test
