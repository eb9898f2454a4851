// Rounds that close without the slowest workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/mode.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <functional>
#include <random>

namespace paceline::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Scalar {
  NDArray weight;
  Engine* engine;
};

void step(KVStore& store, const Scalar& scalar, double gradient) {
  store.push_pull({{"w", NDArray::full(Shape{1}, gradient, DType::kFloat64, {}, *scalar.engine)}},
                  {{"w", scalar.weight}});
  store.step_end();
}

std::vector<Scalar> start(ClusterInProcess& cluster) {
  std::vector<Scalar> scalars(static_cast<std::size_t>(cluster.workers()));
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    Scalar& scalar = scalars[static_cast<std::size_t>(worker)];
    scalar = {NDArray::zeros(Shape{1}, DType::kFloat64, {}, engine), &engine};
    store.init({{"w", scalar.weight}});
    store.set_optimizer(optim::SGD{.lr = 1});
  });
  return scalars;
}

TEST(Backup, SomeWorkerMustBeWaitedFor) {
  const ClusterConfig worker = member(job_config("inproc", 1, 2), Role::kWorker, 0, 0);
  EXPECT_THAT([&] { KVStore::join(worker, "dist_sync:backup=2"); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("backup is 2"), HasSubstr("2 workers"))));
}

TEST(Backup, RoundsCloseWithoutTheLastWhichIsCountedAndGoesOn) {
  ClusterInProcess cluster({.mode = "dist_sync:backup=1", .workers = 3, .serial = false});
  const auto scalars = start(cluster);
  step(cluster.worker(0), scalars[0], -1);
  step(cluster.worker(1), scalars[1], -3);
  EXPECT_EQ(scalars[0].weight.item<double>(), 2);  // the mean of two of three
  EXPECT_EQ(scalars[1].weight.item<double>(), 2);
  // Made from the weights before that round: refused, and not kept for the next.
  step(cluster.worker(2), scalars[2], -100);
  EXPECT_EQ(scalars[2].weight.item<double>(), 2);
  EXPECT_EQ(cluster.worker(0).report().refused, 1);
  // Now it is as new as the others, whatever its own count of steps.
  for (int round = 1; round <= 3; ++round) {
    step(cluster.worker(2), scalars[2], -1);
    step(cluster.worker(0), scalars[0], -1);
    EXPECT_EQ(scalars[2].weight.item<double>(), 2 + round);
    EXPECT_EQ(scalars[0].weight.item<double>(), 2 + round);
  }
  step(cluster.worker(1), scalars[1], -100);
  EXPECT_EQ(scalars[1].weight.item<double>(), 5);
  EXPECT_EQ(cluster.worker(0).report().refused, 2);
  cluster.run([](int, KVStore& store) { store.barrier(); });
}

TEST(Backup, EveryPushIsInItsRoundOrRefused) {
  constexpr int kWorkers = 4, kSteps = 40;
  for (const int backup : {1, 3}) {
    SCOPED_TRACE(backup);
    ClusterInProcess cluster(
        {.mode = "dist_sync:backup=" + std::to_string(backup), .workers = kWorkers, .serial = false});
    const auto scalars = start(cluster);
    cluster.run([&](int worker, KVStore& store) {
      const Scalar& scalar = scalars[static_cast<std::size_t>(worker)];
      for (int i = 0; i < kSteps; ++i) {
        const double before = scalar.weight.item<double>();
        step(store, scalar, -1);
        // Its own round, or those that it was too late for.
        EXPECT_GE(scalar.weight.item<double>(), before + 1);
      }
      scalar.weight.wait();
      store.barrier();
      store.pull("w", scalar.weight);
      const double rounds = scalar.weight.item<double>();
      const StoreReport report = store.report();
      EXPECT_GE(rounds, kSteps);
      EXPECT_EQ(report.pushes + report.refused, kWorkers * kSteps);
      EXPECT_GE(static_cast<double>(report.pushes), rounds);
      store.barrier();
    });
  }
}

TEST(Backup, AKeyThatSomeNeverPushHoldsNobodyBack) {
  ClusterInProcess cluster({.mode = "dist_sync:backup=1", .workers = 3, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray all = NDArray::zeros(Shape{1}, DType::kFloat64, {}, engine);
    const NDArray one = NDArray::zeros(Shape{1}, DType::kFloat64, {}, engine);
    store.init({{"all", all}, {"one", one}});
    store.set_optimizer(optim::SGD{.lr = 1});
    const NDArray gradient = NDArray::full(Shape{1}, -1, DType::kFloat64, {}, engine);
    for (int i = 0; i < 10; ++i) {
      std::vector<PushItem> pushes{{"all", gradient}};
      if (worker == 0) pushes.push_back({"one", gradient});
      store.push_pull(pushes, {{"all", all}, {"one", one}});
      store.step_end();
      one.wait();
      all.wait();
    }
    store.barrier();
    store.pull("one", one);
    EXPECT_EQ(one.item<double>(), 10);
  });
}

// Times of a synchronous update when workers take random times: all begin a round together, and it is over when the
// mode says so.
double mean_round(int workers, int backup, int rounds, const std::function<double(std::mt19937_64&)>& draw) {
  const auto mode = make_mode(Spec{"dist_sync", {{"backup", std::to_string(backup)}}});
  std::mt19937_64 random(17);
  std::vector<double> times(static_cast<std::size_t>(workers));
  double total = 0;
  for (int round = 0; round < rounds; ++round) {
    for (double& time : times) time = draw(random);
    std::sort(times.begin(), times.end());
    int contributed = 1;
    while (!mode->round_complete({contributed, workers})) ++contributed;
    total += times[static_cast<std::size_t>(contributed - 1)];
  }
  return total / rounds;
}

// T5.1: the mean of the K-th of P exponential times is H(P) - H(P - K); lognormal times, from
// a table.
TEST(Backup, TimesOfRoundsAreThoseOfTheory) {
  const auto exponential = [](std::mt19937_64& random) { return std::exponential_distribution<double>(1)(random); };
  for (const auto& [k, expected] : {std::pair{32, 4.0585}, {31, 3.0585}, {28, 1.9752}, {16, 0.6778}, {8, 0.2825}})
    EXPECT_NEAR(mean_round(32, 32 - k, 15000, exponential) / expected, 1, 0.02) << k << " of 32";
  const auto lognormal = [](std::mt19937_64& random) { return std::lognormal_distribution<double>(0, 0.3)(random); };
  for (const auto& [backup, expected] : {std::pair{0, 2.144}, {2, 1.803}, {4, 1.672}, {8, 1.527}, {20, 1.331}})
    EXPECT_NEAR(mean_round(100 + backup, backup, 4000, lognormal) / expected, 1, 0.02) << backup << " backups";
}

}  // namespace
}  // namespace paceline::test
