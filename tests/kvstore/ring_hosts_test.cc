// Mode ring over several hosts: workers of one host add up first, and little goes between hosts.
#include <gtest/gtest.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <set>

#include "allreduce/ring_hosts.h"

namespace paceline::test {
namespace {

using Weights = std::vector<double>;

constexpr std::int64_t kElements = 200000;  // seven groups of pieces, so that every worker is a delegate and a root

NDArray array_of(const Weights& values, Engine& engine) {
  return NDArray::from<double>(values, Shape{static_cast<std::int64_t>(values.size())}, {}, engine);
}
NDArray full(std::int64_t size, double value, Engine& engine) {
  return NDArray::full(Shape{size}, value, DType::kFloat64, {}, engine);
}

TEST(RingHosts, SpeakInTurnsAndSendEachSumOnce) {
  EXPECT_TRUE(RingHosts({{0, "a"}, {1, "b"}, {2, "a"}}).alone(1));
  EXPECT_FALSE(RingHosts({{0, "a"}, {1, "b"}, {2, "a"}}).alone(2));
  const RingHosts hosts({{0, "a"}, {2, "b"}, {3, "a"}, {5, "b"}, {7, "b"}});
  EXPECT_TRUE(hosts.together(0, 3));
  EXPECT_FALSE(hosts.together(3, 5));
  std::map<int, int> roots, delegates;
  for (int group = 0; group < 12; ++group) {
    const int root = hosts.root(group);
    ++roots[root];
    EXPECT_EQ(hosts.above(root, group), -1);
    std::set<int> all;
    int between = 0;
    for (const int rank : {0, 2, 3, 5, 7}) {
      const std::vector<int> below = hosts.below(rank, group);
      if (!below.empty() && rank != root) ++delegates[rank];
      for (const int other : below) {
        EXPECT_EQ(hosts.above(other, group), rank);
        EXPECT_TRUE(all.insert(other).second);
        between += !hosts.together(rank, other);
      }
    }
    EXPECT_EQ(all.size(), 4u);
    EXPECT_EQ(between, 1);
  }
  EXPECT_EQ(roots, (std::map<int, int>{{0, 3}, {3, 3}, {2, 2}, {5, 2}, {7, 2}}));
  EXPECT_EQ(delegates, roots);

  for (const auto& flat : {RingHosts({{0, "a"}, {1, "a"}, {3, "a"}}), RingHosts({{0, "a"}, {1, "b"}, {3, "c"}})}) {
    EXPECT_FALSE(flat.together(0, 1));
    for (int group = 0; group < 6; ++group) EXPECT_EQ(flat.below(flat.root(group), group).size(), 2u);
  }
}

// The mean that the workers share: within a host by rank, then host by host.
Weights expected_mean(const std::vector<std::string>& hosts, const std::vector<Weights>& gradients) {
  std::vector<std::string> order;
  std::map<std::string, double> examples;
  double all = 0;
  for (std::size_t w = 0; w < hosts.size(); ++w) {
    if (examples.count(hosts[w]) == 0) order.push_back(hosts[w]);
    examples[hosts[w]] += static_cast<double>(w + 1);
    all += static_cast<double>(w + 1);
  }
  Weights mean(kElements, 0);
  for (const std::string& host : order) {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      double sum = 0;
      for (std::size_t w = 0; w < hosts.size(); ++w)
        if (hosts[w] == host) sum += gradients[w][i] * static_cast<double>(w + 1);
      mean[i] += examples[host] * (sum / examples[host]);
    }
  }
  for (double& element : mean) element /= all;
  return mean;
}

TEST(RingHosts, AllGetTheBitsOfTheSumInOrder) {
  const std::vector<std::string> hosts{"a", "b", "a", "b", "b"};
  std::vector<Weights> gradients(hosts.size(), Weights(kElements));
  constexpr int kSeed = 5;
  SCOPED_TRACE(str("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  for (Weights& gradient : gradients)
    for (double& g : gradient) g = std::uniform_real_distribution(-1.0, 1.0)(random);
  const Weights expected = expected_mean(hosts, gradients);
  for (const auto& each : {std::pair{"inproc", false}, {"shm", false}, {"inproc", true}}) {
    const char* const transport = each.first;
    const bool faulty = each.second;
    SCOPED_TRACE(str(transport, faulty ? ", faulty" : ""));
    ClusterInProcess cluster({.mode = "ring",
                              .workers = 5,
                              .servers = 0,
                              .transport = transport,
                              .faulty = faulty,
                              .serial = false,
                              .hosts = hosts});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = full(kElements, 0, engine), statistic = full(1, 0, engine);
      store.init({{"w", weight}, {"mean", statistic, true}});
      store.set_optimizer(optim::Assign{});
      for (int step = 0; step < (faulty ? 1 : 2); ++step) {
        store.push_pull({{"w", array_of(gradients[static_cast<std::size_t>(worker)], engine)},
                         {"mean", full(1, 2.0 * worker, engine)}},
                        {{"w", weight}, {"mean", statistic}}, worker + 1);
        store.step_end();
        EXPECT_EQ(weight.to_vector<double>(), expected);
        EXPECT_NEAR(statistic.item<double>(), 4, 1e-12);
      }
    });
  }
}

TEST(RingHosts, SendAsMuchAsOneWorkerWould) {
  constexpr int kSteps = 3;
  const std::vector<std::string> hosts{"a", "a", "b", "b", "b", "b"};
  std::map<std::string, std::atomic<std::int64_t>> sent;
  for (const std::string& host : hosts) sent[host] = 0;
  for (const double momentum : {0.0, 0.5}) {
    ClusterInProcess cluster(
        {.mode = "ring", .workers = 6, .servers = 0, .transport = "shm", .serial = false, .hosts = hosts});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = full(kElements, 0, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1, .momentum = momentum});
      store.barrier();
      const std::int64_t before = store.report().bytes_to_hosts;  // the first weights
      for (int step = 0; step < kSteps; ++step) {
        store.push_pull({{"w", full(kElements, 1, engine)}}, {{"w", weight}});
        store.step_end();
        weight.wait();
      }
      store.barrier();
      sent[hosts[static_cast<std::size_t>(worker)]] += store.report().bytes_to_hosts - before;
    });
  }
  for (const auto& [host, bytes] : sent) EXPECT_EQ(bytes, 2 * kSteps * kElements * 8) << host;
}

// Each key is pushed by some workers in some steps; workers run out of steps one after the other.
TEST(RingHosts, KeysThatSomePushInSomeSteps) {
  constexpr int kWorkers = 5, kKeys = 5;
  constexpr std::int64_t kLength = 40000;  // more than a group
  const auto steps = [](int worker) { return 4 + worker; };
  const auto pushes = [](int worker, int key, int step) { return (worker * 7 + key * 3 + step * 5) % 4 == 0; };
  Weights expected(kKeys, 0);
  for (int step = 0; step < steps(kWorkers - 1); ++step)
    for (int key = 0; key < kKeys; ++key) {
      bool pushed = false;
      for (int worker = 0; worker < kWorkers; ++worker) pushed |= step < steps(worker) && pushes(worker, key, step);
      expected[static_cast<std::size_t>(key)] += pushed;
    }
  for (const bool faulty : {false, true}) {
    SCOPED_TRACE(faulty);
    ClusterInProcess cluster({.mode = "ring",
                              .workers = kWorkers,
                              .servers = 0,
                              .faulty = faulty,
                              .serial = false,
                              .hosts = {"a", "b", "b", "a", "b"}});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      std::vector<InitValue> values;
      std::vector<PullItem> pulls;
      for (int key = 0; key < kKeys; ++key) {
        values.push_back({"key" + std::to_string(key), full(kLength, 0, engine)});
        pulls.push_back({values.back().key, values.back().value});
      }
      store.init(values);
      store.set_optimizer(optim::SGD{.lr = 1});
      for (int epoch = 1; epoch <= (faulty ? 1 : 2); ++epoch) {
        for (int step = 0; step < steps(worker); ++step) {
          for (int key = 0; key < kKeys; ++key)
            if (pushes(worker, key, step))
              store.push(pulls[static_cast<std::size_t>(key)].key, full(kLength, -1, engine));
          store.step_end();
          if (step % 3 == 0) {
            store.push_pull({}, pulls);
            for (const PullItem& item : pulls) item.out.wait();
          }
        }
        store.barrier();
        store.push_pull({}, pulls);
        for (std::size_t key = 0; key < kKeys; ++key)
          EXPECT_EQ(pulls[key].out.to_vector<double>(), Weights(kLength, epoch * expected[key])) << key;
        store.barrier();
      }
      EXPECT_EQ(store.report().refused, 0);
    });
  }
}

// A worker is lost in the middle of a round: of a host with others, alone on its host, the leader of all.
TEST(RingHosts, GoOnAfterALoss) {
  constexpr int kWorkers = 5, kSteps = 8, kLast = 3;
  for (const int killed : {0, 3, 4}) {
    SCOPED_TRACE(killed);
    ClusterInProcess cluster(
        {.mode = "ring", .workers = kWorkers, .servers = 0, .serial = false, .hosts = {"a", "b", "a", "b", "c"}});
    std::array<Weights, kWorkers> weights;
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = full(kElements, 0, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
      for (int step = 0; step < kSteps; ++step) {
        store.push_pull({{"w", full(kElements, -(1.0 + worker) * (step + 1), engine)}}, {{"w", weight}}, 1 + worker);
        store.step_end();
        if (worker == killed && step == kLast) return cluster.kill_worker(worker);
        weight.wait();
      }
      store.barrier();
      store.pull("w", weight);
      weights[static_cast<std::size_t>(worker)] = weight.to_vector<double>();
      store.barrier();
      store.finish();
    });
    // `last`: the last step with the gradient of the worker that was killed.
    const auto expected = [&](int last) {
      double weight = 0, momentum = 0;
      for (int step = 0; step < kSteps; ++step) {
        double sum = 0, examples = 0;
        for (int worker = 0; worker < kWorkers; ++worker) {
          if (worker == killed && step > last) continue;
          sum += (1.0 + worker) * (1.0 + worker) * (step + 1);
          examples += 1 + worker;
        }
        momentum = 0.5 * momentum + sum / examples;
        weight += momentum;
      }
      return weight;
    };
    const Weights& first = weights[killed == 0 ? 1 : 0];
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (worker != killed) {
        EXPECT_EQ(weights[static_cast<std::size_t>(worker)], first) << worker;
      }
    }
    ASSERT_EQ(first.size(), static_cast<std::size_t>(kElements));
    // Each piece of the key is with or without the last step of the worker that was killed. The same holds for the step
    // before, if no other worker had its result yet.
    const std::array<double, 3> possible{expected(kLast), expected(kLast - 1), expected(kLast - 2)};
    for (const double w : first) {
      double off = 1;
      for (const double one : possible) off = std::min(off, std::abs(w - one));
      ASSERT_LT(off, 1e-9) << w;
    }
    int borders = 0;
    for (std::size_t i = 1; i < first.size(); ++i) borders += std::abs(first[i] - first[i - 1]) > 1e-9;
    EXPECT_LT(borders, 7) << "a piece is not whole";
  }
}

// Worker 2 waits until no gradient of the first step can come. Its neighbour's promise waits for worker 1's, which
// comes back meanwhile and promises nothing until it has fetched the weights.
TEST(RingHosts, PromisesCountAgainForAWorkerThatReturns) {
  constexpr int kWorkers = 4;
  constexpr std::int64_t kLong = 4000000;  // to fetch takes longer than to ask
  ClusterInProcess cluster(
      {.mode = "ring", .workers = kWorkers, .servers = 0, .serial = false, .hosts = {"a", "a", "b", "c"}});
  std::atomic<int> asked = 0;
  std::atomic<bool> returned = false;
  cluster.run([&](int worker, KVStore&) {
    Engine& engine = cluster.engine(worker);
    NDArray weight = full(kLong, 0, engine);
    const auto wait_for = [](const auto& reached) {
      while (!reached()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    cluster.worker(worker).init({{"w", weight}});
    if (worker == 1) {
      wait_for([&] { return asked == 2; });
      cluster.kill_worker(1);
      cluster.join_worker(1);
      weight = full(kLong, 0, engine);
      returned = true;
      cluster.worker(1).init({{"w", weight}});
    }
    KVStore& store = cluster.worker(worker);
    if (worker == 3) {
      wait_for([&] { return returned.load(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it is in the ring by then
    }
    store.step_end();
    store.pull("w", weight);
    ++asked;
    weight.wait();
    store.barrier();
  });
}

}  // namespace
}  // namespace paceline::test
