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

TEST(Store, RoundTripOverBothTransports) {
  for (const char* transport : {"inproc", "tcp"}) {
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

}  // namespace
}  // namespace paceline::test
