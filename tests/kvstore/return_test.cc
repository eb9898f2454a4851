// A worker that is killed and comes back, under the same rank, into a job that went on.
#include <gtest/gtest.h>
#include <paceline/kernel.h>
#include <paceline/mode.h>
#include <support/cluster_in_process.h>

#include <atomic>
#include <chrono>

#include "hand_made_worker.h"
#include "key_partition.h"
#include "parse_body.h"
#include "store.pb.h"

namespace paceline::test {
namespace {

using namespace std::chrono_literals;

struct Scalar {
  NDArray weight;
  Engine* engine;
  void step(KVStore& store, double gradient = -1) const {
    store.push_pull({{"w", NDArray::full(Shape{1}, gradient, DType::kFloat64, {}, *engine)}}, {{"w", weight}});
    store.step_end();
    weight.wait();
  }
};

Scalar begin(ClusterInProcess& cluster, int worker, KVStore& store) {
  Engine& engine = cluster.engine(worker);
  Scalar scalar{NDArray::zeros(Shape{1}, DType::kFloat64, {}, engine), &engine};
  store.init({{"w", scalar.weight}});
  store.set_optimizer(optim::SGD{.lr = 1});
  return scalar;
}

const std::vector<std::string> kModes = {"dist_sync", "dist_async:staleness=none", "dist_async:staleness=none,bound=1",
                                         "dist_sync:backup=1", "ring"};

ClusterOptions options_of(const std::string& mode) {
  return {.mode = mode, .workers = 3, .servers = mode == "ring" ? 0 : 2, .serial = false};
}

TEST(Return, AWorkerThatReturnsIsInStepWithTheOthers) {
  for (const std::string& mode : kModes) {
    SCOPED_TRACE(mode);
    constexpr int kBefore = 5, kAfter = 10;
    ClusterInProcess cluster(options_of(mode));
    std::atomic<int> ready = 0;
    std::atomic<bool> returned = false;
    std::array<std::atomic<int>, 3> steps{};
    cluster.run([&](int worker, KVStore& store) {
      std::atomic<int>& mine = steps[static_cast<std::size_t>(worker)];
      {
        const Scalar scalar = begin(cluster, worker, store);
        store.barrier();
        for (int i = 0; i < kBefore; ++i, ++mine) scalar.step(store);
        store.barrier();
        ++ready;
        if (worker != 1) {
          // Until the returned worker has had its steps, whatever the mode makes of them.
          while (!returned) {
            scalar.step(store);
            ++mine;
          }
        }
        if (worker != 1) {
          store.barrier();
          store.pull("w", scalar.weight);
          scalar.weight.wait();
          store.barrier();
        }
      }
      if (worker != 1) return;
      while (ready < 3) std::this_thread::sleep_for(1ms);
      cluster.kill_worker(1);
      cluster.join_worker(1);
      KVStore& again = cluster.worker(1);
      EXPECT_TRUE(again.backend().joined_late());
      again.barrier();  // of the program's start: the others have passed it
      const Scalar scalar = begin(cluster, worker, again);
      EXPECT_GE(scalar.weight.item<double>(), kBefore);
      for (int i = 0; i < kAfter; ++i, ++mine) scalar.step(again);
      returned = true;
      again.barrier();
      again.pull("w", scalar.weight);
      const double weight = scalar.weight.item<double>();
      const StoreReport report = again.report();
      if (mode == "dist_sync" || mode == "ring") {
        EXPECT_EQ(weight, std::max(steps[0], steps[2]));  // one mean a round, whoever is there
        EXPECT_EQ(report.refused, 0);
      } else if (mode != "dist_sync:backup=1") {
        EXPECT_EQ(weight, steps[0] + steps[1] + steps[2]);
        EXPECT_EQ(report.refused, 0);
      } else {
        EXPECT_EQ(report.pushes + report.refused, steps[0] + steps[1] + steps[2]);
      }
      again.barrier();
    });
  }
}

// The others' clocks count from the job's start, and so does its own.
TEST(Return, TheBoundHoldsForAReturnedWorker) {
  constexpr int kBound = 1;
  ClusterInProcess cluster(options_of("dist_async:staleness=none,bound=" + std::to_string(kBound)));
  std::atomic<int> ready = 0, limit = 1 << 30;
  std::atomic<bool> returned = false;
  std::array<std::atomic<int>, 3> steps{};
  cluster.run([&](int worker, KVStore& store) {
    const Scalar scalar = begin(cluster, worker, store);
    std::atomic<int>& mine = steps[static_cast<std::size_t>(worker)];
    for (int i = 0; i < 20; ++i, ++mine) scalar.step(store);
    ++ready;
    if (worker != 1) {
      while (!returned) {
        scalar.step(store);
        ++mine;
        EXPECT_LE(mine, limit);
      }
      store.barrier();
      return;
    }
    while (ready < 3) std::this_thread::sleep_for(1ms);
    cluster.kill_worker(1);
    cluster.join_worker(1);
    KVStore& again = cluster.worker(1);
    const Scalar own = begin(cluster, worker, again);
    // Its clock is the slowest one's, whose counter here may lag by one; a counter may be one past the bound.
    const int clock = std::min(steps[0], steps[2]) + 1;
    for (int i = 0; i < 10; ++i) {
      limit = clock + i + 1 + kBound + 1;
      std::this_thread::sleep_for(3ms);
      own.step(again);
    }
    returned = true;
    again.barrier();
  });
  EXPECT_GE(std::min(steps[0], steps[2]), 20 + 10 - kBound - 1);
}

TEST(Return, BarriersGoOnFromThoseThatWerePassed) {
  ClusterInProcess cluster(options_of("dist_sync"));
  std::atomic<int> ready = 0, met = 0;
  std::atomic<bool> joined = false;
  cluster.run([&](int worker, KVStore& store) {
    begin(cluster, worker, store);
    for (int i = 0; i < 4; ++i) store.barrier();
    ++ready;
    if (worker == 1) {
      while (ready < 3) std::this_thread::sleep_for(1ms);
      cluster.kill_worker(1);
      cluster.join_worker(1);
      joined = true;
      begin(cluster, worker, cluster.worker(1));
    }
    while (!joined) std::this_thread::sleep_for(1ms);
    KVStore& mine = cluster.worker(worker);
    for (int i = 1; i <= 3; ++i) {
      ++met;
      mine.barrier();
      EXPECT_GE(met, 3 * i);
      mine.barrier();
    }
  });
}

TEST(Return, TheLearningRateCanBeSetByAReturnedWorker) {
  ClusterInProcess cluster(options_of("dist_async:staleness=none"));
  cluster.run([&](int worker, KVStore& store) {
    begin(cluster, worker, store);
    store.set_learning_rate(0.5);
    store.set_learning_rate(0.25);
    store.barrier();
  });
  cluster.kill_worker(1);
  cluster.join_worker(1);
  KVStore& store = cluster.worker(1);
  const Scalar scalar = begin(cluster, 1, store);
  store.set_learning_rate(2);
  scalar.step(store);
  EXPECT_EQ(scalar.weight.item<double>(), 2);
}

// What a policy remembers as pulled by the lost worker is not taken for what the new one pulled.
TEST(Return, DelaysAreCorrectedWithWhatTheReturnedWorkerPulled) {
  ClusterOptions options = options_of("dist_async:staleness=delay_compensated,adaptive=0,lambda=0.5,clip=0");
  ClusterInProcess cluster(options);
  std::vector<Scalar> scalars(3);
  const auto init = [&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    Scalar& scalar = scalars[static_cast<std::size_t>(worker)];
    scalar = {NDArray::full(Shape{1}, 1, DType::kFloat64, {}, engine), &engine};
    store.init({{"w", scalar.weight}});
    store.set_optimizer(optim::SGD{.lr = 0.1});
  };
  cluster.run(init);
  for (int i = 0; i < 6; ++i) scalars[1].step(cluster.worker(1), 0);
  cluster.kill_worker(1);
  cluster.join_worker(1);
  init(1, cluster.worker(1));
  const double pulled = scalars[1].weight.item<double>();
  scalars[0].step(cluster.worker(0), 2);
  const double now = scalars[0].weight.item<double>();
  scalars[1].step(cluster.worker(1), 2);
  EXPECT_NEAR(scalars[1].weight.item<double>(), now - 0.1 * (2 + 0.5 * 4 * (now - pulled)), 1e-12);
  EXPECT_NE(now, pulled);
}

// Takes its time over a gradient of 0; notes whether the weights behind any other late one are remembered.
class Slow final : public Staleness {
 public:
  bool needs_pulled() const override { return true; }
  void correct(const Tile<float>&, const StaleContext&) const override {}
  void correct(const Tile<double>& tile, const StaleContext& context) const override {
    if (tile.gradient[0] == 0)
      std::this_thread::sleep_for(10ms);
    else if (context.delay > 0)
      remembered = tile.pulled != nullptr;
  }
  mutable std::atomic<bool> remembered = false;
};

// A part of the server that has not heard yet of the loss forgets nothing of what the returned worker pulled elsewhere.
TEST(Return, WhatTheLostOnePulledIsForgottenBeforeTheReturnedOnePulls) {
  ClusterConfig job = job_config("inproc", 1, 2);
  job.silence_deadline_seconds = 20;
  const EndedFile ended(&job);
  SchedulerThread scheduler(job);
  const auto policy = std::make_shared<Slow>();
  Server server(member(job, Role::kServer, 0), {.policies = {{"slow", policy}}}, 2);
  std::thread serving([&] { server.run(); });
  std::unique_ptr<Node> nodes[2];
  const auto join = [&](int rank) {
    nodes[rank] = std::make_unique<Node>(member(job, Role::kWorker, 0, rank), Node::Handlers{});
    nodes[rank]->join();
  };
  std::thread other([&] { join(1); });
  join(0);
  other.join();

  const auto frame_of = [](double value) { return Frame::of(std::string(reinterpret_cast<const char*>(&value), 8)); };
  for (std::uint32_t id : {0u, 1u}) {  // one for each of the server's shards
    wire::InitValuesRequest values;
    values.set_mode("dist_async");
    write_key({"w" + std::to_string(id), DType::kFloat64, Shape{1}, false}, values.add_keys());
    write_partition({static_cast<int>(id), {{0, 0, 1}}}, values.mutable_partition());
    ask(*nodes[0], MessageKind::kInitValues, values.SerializeAsString(), {frame_of(1)});
  }
  wire::SetRules rules;
  rules.set_call(1);
  rules.set_optimizer("sgd");
  rules.set_staleness("slow");
  ask(*nodes[0], MessageKind::kSetRules, rules.SerializeAsString());
  const auto pull = [&](int rank, std::uint32_t partition) {
    wire::PushPullRequest body;
    body.add_parts()->set_partition(partition);
    body.mutable_parts(0)->add_pull(0);
    ask(*nodes[rank], MessageKind::kPushPull, body.SerializeAsString());
  };
  const auto push = [&](std::uint32_t partition, std::uint64_t sequence, double gradient) {
    wire::PushPullRequest body;
    body.set_examples(1);
    body.add_parts()->set_partition(partition);
    body.mutable_parts(0)->set_sequence(sequence);
    body.mutable_parts(0)->add_push(0);
    body.mutable_parts(0)->add_base(0);
    return message_of(MessageKind::kPushPull, body, {frame_of(gradient)});
  };
  const PeerId to{Role::kServer, 0};
  // The first shard is busy until after the return.
  for (std::uint64_t sequence = 1; sequence <= 120; ++sequence)
    nodes[0]->ask(to, push(0, sequence, 0), [](const std::optional<Message>&, const std::exception_ptr&) {});
  nodes[1].reset();
  ended.add_killed(1);
  join(1);
  pull(1, 1);
  pull(0, 0);  // behind all that the first shard had to do
  nodes[0]->ask_and_wait(to, push(1, 1, 1));
  nodes[1]->ask_and_wait(to, push(1, 1, 1));
  EXPECT_TRUE(policy->remembered);
  for (const auto& node : nodes) node->leave();
  serving.join();
}

TEST(Return, OtherShapesAreRefused) {
  ClusterInProcess cluster(options_of("dist_sync"));
  cluster.run([&](int worker, KVStore& store) { begin(cluster, worker, store); });
  cluster.kill_worker(1);
  cluster.join_worker(1);
  const NDArray other = NDArray::zeros(Shape{2}, DType::kFloat64, {}, cluster.engine(1));
  const std::string error = error_of_call([&] { cluster.worker(1).init({{"w", other}}); });
  EXPECT_NE(error.find("float64 (2,) at worker 1"), std::string::npos) << error;
}

// Its predecessor's positions go to whoever asks first; it has none of its own.
TEST(Return, AWorkerWithoutAPartTakesOver) {
  for (const std::string& mode : kModes) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster(options_of(mode));
    std::atomic<int> ready = 0, delivered = 0;
    std::atomic<bool> joined = false;
    constexpr std::int64_t kPositions = 3000;
    cluster.run([&](int worker, KVStore& first) {
      KVStore* store = &first;
      Scalar scalar = begin(cluster, worker, *store);
      const auto deliver = [&](const PositionRanges& ranges) {
        for (const auto& [from, to] : ranges) {
          scalar.step(*store);
          delivered += static_cast<int>(to - from);
          store->backend().data_commit(0, {{from, to}});
        }
      };
      const auto [index, count] = store->backend().data_part(0);
      EXPECT_EQ(count, 3);
      store->backend().data_begin(0, {.mine = {{index * 1000, index * 1000 + 1000}}, .all = {{0, kPositions}}});
      ++ready;
      while (ready < 3) std::this_thread::sleep_for(1ms);
      if (worker == 1) {
        cluster.kill_worker(1);
        cluster.join_worker(1);
        joined = true;
        store = &cluster.worker(1);
        EXPECT_EQ(store->backend().data_part(0).second, 0);
        store->backend().data_begin(0, {.mine = {}, .all = {{0, kPositions}}});
      } else {
        deliver({{index * 1000, index * 1000 + 500}, {index * 1000 + 500, index * 1000 + 1000}});
      }
      // Without worker 1 the others would end the epoch.
      while (!joined) std::this_thread::sleep_for(1ms);
      bool begun = worker != 1;
      for (;;) {
        const PositionRanges more = store->backend().data_take_over(0, true);
        if (more.empty()) break;
        if (!std::exchange(begun, true)) scalar = begin(cluster, worker, *store);
        deliver(more);
      }
      store->barrier();
      EXPECT_EQ(store->backend().data_committed(0), (PositionRanges{{0, kPositions}}));
      // The next epoch has a part for it.
      EXPECT_EQ(store->backend().data_part(1), (std::pair<int, int>{worker, 3}));
      if (!begun) begin(cluster, worker, *store);
      store->barrier();
    });
    EXPECT_EQ(delivered, kPositions);
  }
}

}  // namespace
}  // namespace paceline::test
