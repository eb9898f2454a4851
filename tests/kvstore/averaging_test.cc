// Local training: fixed points, the elastic rule, clients that are chosen, checkpoints.
#include <gtest/gtest.h>
#include <kvstore/row_support.h>
#include <support/cluster_in_process.h>
#include <support/own_objects.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>

#include "failed_array.h"
#include "servers/averaging.h"
#include "servers/local_state.h"

namespace paceline::test {
namespace {

using namespace std::chrono_literals;

NDArray scalar(double value, Engine& engine) { return NDArray::full(Shape{1}, value, DType::kFloat64, {}, engine); }

NDArray begin(ClusterInProcess& cluster, int worker, KVStore& store, const Spec& optimizer) {
  const NDArray weight = scalar(0, cluster.engine(worker));
  store.init({{"w", weight}});
  store.set_optimizer(optimizer);
  return weight;
}

void step(KVStore& store, Engine& engine, const NDArray& weight, double gradient, std::int64_t examples = 1) {
  store.push_pull({{"w", scalar(gradient, engine)}}, {{"w", weight}}, examples);
  store.step_end();
  weight.wait();
}

// T1.10: two workers minimise 1/2 l_i (x - b_i)^2, l = (1, 0.1), b = (0, 10), at rate 0.5; their mean after H steps
// each settles where theory says.
TEST(Averaging, SettlesAtTheFixedPointsOfLocalTraining) {
  for (const auto& [steps, expected] : {std::pair{1, 0.9091}, {2, 1.1504}, {4, 1.6518}, {8, 2.5256}, {16, 3.5893}}) {
    SCOPED_TRACE(steps);
    ClusterInProcess cluster({.mode = "dist_local:steps=" + std::to_string(steps), .serial = false});
    cluster.run([&, count = steps, fixed = expected](int worker, KVStore& store) {
      const NDArray weight = begin(cluster, worker, store, optim::SGD{.lr = 0.5});
      const double curvature = worker == 0 ? 1 : 0.1, minimum = worker == 0 ? 0 : 10;
      for (int i = 0; i < 40 * count; ++i)
        step(store, cluster.engine(worker), weight, curvature * (weight.item<double>() - minimum));
      EXPECT_NEAR(weight.item<double>(), fixed, 1e-3);
    });
  }
}

TEST(Averaging, WeighsByExamplesAndAveragesStatistics) {
  ClusterInProcess cluster({.mode = "dist_local:steps=2", .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = scalar(1, engine), mean = scalar(0, engine), idle = scalar(7, engine);
    store.init({{"w", weight}, {"mean", mean, true}, {"idle", idle}});
    store.set_optimizer(optim::SGD{.lr = 1});
    const std::int64_t examples = worker == 0 ? 1 : 3;
    for (int i = 1; i <= 2; ++i) {
      store.push_pull({{"w", scalar(worker == 0 ? -4 : 4, engine)}, {"mean", scalar(worker + i, engine)}},
                      {{"w", weight}, {"mean", mean}}, examples);
      store.step_end();
      if (i == 1) {
        EXPECT_EQ(weight.item<double>(), worker == 0 ? 5 : -3);
        EXPECT_EQ(mean.item<double>(), worker + 1);
      }
    }
    EXPECT_EQ(weight.item<double>(), 1 + (1 * 8 - 3 * 8) / 4.0);
    EXPECT_EQ(mean.item<double>(), 2.5);
    store.pull("idle", idle);
    EXPECT_EQ(idle.item<double>(), 7);
    // A part of a round counts at a barrier.
    step(store, engine, weight, worker == 0 ? -4 : 4, examples);
    store.barrier();
    store.pull("w", weight);
    EXPECT_EQ(weight.item<double>(), -3 + (1 * 4 - 3 * 4) / 4.0);
  });
}

// d = alpha (x - z); x -= d; z += d, worker after worker.
// What was learned from data is at the servers before it counts as delivered; who has no more ends its round early.
TEST(Averaging, DataIsCommittedWithItsRound) {
  ClusterInProcess cluster({.mode = "dist_local:steps=4", .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Backend& exchange = store.backend();
    const NDArray weight = begin(cluster, worker, store, optim::SGD{.lr = 1});
    exchange.data_part(0);
    const std::int64_t first = worker == 0 ? 0 : 6;
    exchange.data_begin(0, {.mine = {{first, first + 6}}, .all = {{0, 12}}});
    store.barrier();
    const auto wait_for = [&](const std::string& name) {
      while (store.facts(name).empty()) std::this_thread::yield();
    };
    if (worker == 1) {
      wait_for("within a round");
      EXPECT_EQ(exchange.data_committed(0), PositionRanges());
      store.put_fact("looked", "yes");
    }
    for (std::int64_t i = first; i < first + 6; ++i) {
      if (i == 3) {
        store.put_fact("within a round", "yes");
        wait_for("looked");
      }
      step(store, cluster.engine(worker), weight, -1);
      exchange.data_commit(0, {{i, i + 1}});
    }
    EXPECT_TRUE(exchange.data_take_over(0, true).empty());
    EXPECT_EQ(exchange.data_committed(0), (PositionRanges{{0, 12}}));
    store.barrier();
    store.pull("w", weight);
    EXPECT_EQ(weight.item<double>(), 6);
  });
}

TEST(Averaging, WhoLeavesAnEpochWithinARoundFindsItsOwnPositionsCommitted) {
  ClusterInProcess cluster({.mode = "dist_local:steps=8", .workers = 1});
  KVStore& store = cluster.worker(0);
  Backend& exchange = store.backend();
  const NDArray weight = begin(cluster, 0, store, optim::SGD{.lr = 1});
  exchange.data_part(0);
  exchange.data_begin(0, {.mine = {{0, 12}}, .all = {{0, 12}}});
  const auto train = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      step(store, cluster.engine(0), weight, -1);
      exchange.data_commit(0, {{i, i + 1}});
    }
  };
  train(0, 3);
  EXPECT_EQ(exchange.data_committed(0), (PositionRanges{{0, 3}}));
  train(3, 5);
  exchange.data_begin(0, {.mine = {{5, 12}}, .all = {{5, 12}}});
  train(5, 12);
  EXPECT_TRUE(exchange.data_take_over(0, true).empty()) << "what was trained on before the second begin comes again";
  EXPECT_EQ(exchange.data_committed(0), (PositionRanges{{0, 12}}));
}

TEST(Averaging, ElasticDrawsEachToTheCentreAndTheCentreToEach) {
  constexpr double kAlpha = 0.3;
  ClusterInProcess cluster({.mode = "dist_local:averaging=elastic,steps=2,alpha=0.3"});
  std::vector<NDArray> weights(2);
  cluster.run([&](int worker, KVStore& store) {
    weights[static_cast<std::size_t>(worker)] = begin(cluster, worker, store, optim::SGD{.lr = 0.1});
  });
  double centre = 0;
  std::array<double, 2> local{};
  for (int i = 0; i < 40; ++i) {
    for (std::size_t worker = 0; worker < 2; ++worker) {
      const double gradient = local[worker] - (worker == 0 ? 1 : 3);
      local[worker] -= 0.1 * gradient;
      if (i % 2 == 1) {
        const double force = kAlpha * (local[worker] - centre);
        local[worker] -= force;
        centre += force;
      }
      const int index = static_cast<int>(worker);
      step(cluster.worker(index), cluster.engine(index), weights[worker], gradient);
      EXPECT_NEAR(weights[worker].item<double>(), local[worker], 1e-12);
    }
  }
  EXPECT_GT(centre, 0.5);
  // All go on from the centre after a barrier.
  cluster.run([&](int worker, KVStore& store) {
    store.barrier();
    store.pull("w", weights[static_cast<std::size_t>(worker)]);
    weights[static_cast<std::size_t>(worker)].wait();
  });
  EXPECT_EQ(weights[0].item<double>(), weights[1].item<double>());
}

TEST(Averaging, EveryRoundHasItsShareOfClients) {
  const auto options = AveragingOptions::parse(Options::parse("averaging=federated,fraction=0.1,seed=3"));
  std::vector<int> rounds(100);
  for (std::uint64_t round = 0; round < 300; ++round) {
    int count = 0;
    for (int rank = 0; rank < 100; ++rank) {
      const bool takes_part = options.takes_part(round, rank, 100);
      count += takes_part;
      rounds[static_cast<std::size_t>(rank)] += takes_part;
    }
    EXPECT_EQ(count, 10);
  }
  for (const int of_client : rounds) {
    EXPECT_GT(of_client, 8);
    EXPECT_LT(of_client, 65);
  }
}

// Each round adds 1 to the weight, whoever makes it; one that vanishes is no part of the mean.
TEST(Averaging, FederatedRoundsGoOnWithoutClientsThatVanish) {
  ClusterInProcess cluster(
      {.mode = "dist_local:steps=3,averaging=federated,fraction=0.5", .workers = 4, .serial = false});
  std::atomic<double> reached = 0;
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = begin(cluster, worker, store, optim::SGD{.lr = 1});
    for (int i = 0; i < 40 || weight.item<double>() < 30; ++i) {
      step(store, cluster.engine(worker), weight, -1.0 / 3);
      const double steps = 3 * weight.item<double>();
      EXPECT_NEAR(steps, std::round(steps), 1e-6);
      if (worker == 2 && i == 7) {  // in the middle of a round of its own
        cluster.kill_worker(2);
        return;
      }
    }
    store.finish();
    reached = weight.item<double>();
  });
  EXPECT_GE(reached, 30 - 1e-9);
}

// A worker that was lost trains no examples, and one that returns goes on with the schedule of the job.
TEST(Averaging, SchedulesCountTheExamplesOfLiveWorkersAcrossAReturn) {
  ClusterInProcess cluster({.mode = "dist_local:steps=1", .serial = false});
  const Spec optimizer = optim::SGD{.lr = 1, .schedule = {.form = "step", .every = 4, .factor = 0}};
  std::vector<NDArray> weights(2);
  cluster.run([&](int worker, KVStore& store) {
    weights[static_cast<std::size_t>(worker)] = begin(cluster, worker, store, optimizer);
  });
  cluster.kill_worker(1);
  cluster.worker(0).barrier();
  for (int i = 0; i < 4; ++i) step(cluster.worker(0), cluster.engine(0), weights[0], -1);
  EXPECT_EQ(weights[0].item<double>(), 4);
  cluster.join_worker(1);
  cluster.run([&](int worker, KVStore& store) {
    NDArray& weight = weights[static_cast<std::size_t>(worker)];
    if (worker == 1) weight = begin(cluster, worker, store, optimizer);
    store.barrier();
    step(store, cluster.engine(worker), weight, -1);
    EXPECT_EQ(weight.item<double>(), 4) << worker;
  });
}

TEST(Averaging, GoesOnAfterAFailedGradient) {
  for (const char* mode : {"dist_local", "dist_local:averaging=elastic"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .servers = 1, .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = begin(cluster, worker, store, optim::SGD{});
      for (int i = 0; i < 3; ++i) {
        const NDArray gradient = scalar(1, engine);
        const bool fails = worker == 0 && i == 0;
        if (fails) fail(gradient);
        store.push_pull({{"w", gradient}}, {{"w", weight}});
        store.step_end();
        if (fails)
          EXPECT_THROW(weight.wait(), InvalidArgument);
        else
          EXPECT_EQ(error_of_call([&] { weight.wait(); }), "") << "worker " << worker << ", step " << i;
      }
      store.barrier();
    });
  }
}

TEST(Averaging, CheckpointsHoldTheWorkersOptimizers) {
  const auto engine = make_threaded_engine();
  const Spec optimizer = optim::SGD{.lr = 0.1, .momentum = 0.9};
  const auto minimum = [](int worker) { return worker == 0 ? 1.0 : 3.0; };
  for (const char* mode : {"dist_local:steps=4", "dist_local:steps=4,averaging=elastic"}) {
    SCOPED_TRACE(mode);
    const auto train = [&](ClusterInProcess& cluster, const StoreState* from, StoreState* saved) {
      std::array<double, 2> result{};
      std::array<std::atomic<int>, 2> turn{};
      cluster.run([&](int worker, KVStore& store) {
        const NDArray weight = begin(cluster, worker, store, optimizer);
        if (from) store.load(worker == 0 ? *from : StoreState{});
        for (int i = 0; i < 20; ++i) {
          // In turn, so that elastic gives the same numbers each time; the mean does not care.
          if (std::string(mode).ends_with("elastic"))
            while (worker == 0 ? turn[1] < i : turn[0] <= i) std::this_thread::yield();
          step(store, cluster.engine(worker), weight, weight.item<double>() - minimum(worker));
          ++turn[static_cast<std::size_t>(worker)];
          if (i == 11 && saved) {
            StoreState state = store.save();
            if (worker == 0) *saved = std::move(state);
            store.pull("w", weight);
          }
          if (i == 7 && from) break;
        }
        result[static_cast<std::size_t>(worker)] = weight.item<double>();
      });
      return result;
    };
    StoreState saved;
    std::array<double, 2> whole{}, resumed{};
    {
      ClusterInProcess cluster({.mode = mode, .engine = engine.get()});
      whole = train(cluster, nullptr, &saved);
    }
    {
      ClusterInProcess cluster({.mode = mode, .engine = engine.get()});
      resumed = train(cluster, &saved, nullptr);
    }
    EXPECT_EQ(whole, resumed);
  }
}

// Every client pushes a number of its own, so that the weights tell who made each round.
TEST(Averaging, ClientsAreDrawnOnFromACheckpoint) {
  constexpr int kRounds = 8;
  const auto engine = make_threaded_engine();
  struct Run {
    StoreState saved;
    std::int64_t begin = 0;
    std::map<std::int64_t, double> weights;  // by the rounds that are over
  };
  const auto train = [&](const StoreState* from) {
    Run run;
    std::mutex mutex;
    ClusterInProcess cluster({.mode = "dist_local:steps=1,averaging=federated,fraction=0.5,seed=3",
                              .workers = 4,
                              .serial = false,
                              .engine = engine.get()});
    cluster.run([&](int worker, KVStore& store) {
      const NDArray weight = begin(cluster, worker, store, optim::SGD{.lr = 1});
      const auto train_until = [&](std::int64_t end) {
        while (store.report().clock < end) {
          step(store, *engine, weight, -(1 << worker));
          const std::lock_guard lock(mutex);
          const auto [known, added] = run.weights.emplace(store.report().clock, weight.item<double>());
          EXPECT_EQ(known->second, weight.item<double>()) << "after " << known->first << " rounds";
        }
      };
      if (from) {
        store.load(worker == 0 ? *from : StoreState{});
      } else {
        train_until(kRounds);
        StoreState state = store.save();
        if (worker == 0) run.saved = std::move(state);
      }
      const std::int64_t begins = store.report().clock;
      if (worker == 0) run.begin = begins;
      train_until(begins + kRounds);
      store.finish();
    });
    return run;
  };
  const Run whole = train(nullptr), resumed = train(&whole.saved);
  EXPECT_GE(whole.begin, kRounds);
  EXPECT_EQ(resumed.begin, whole.begin);
  int compared = 0;
  for (const auto& [rounds, weight] : whole.weights) {
    const auto found = resumed.weights.find(rounds);
    if (rounds < whole.begin || rounds > whole.begin + kRounds || found == resumed.weights.end()) continue;
    EXPECT_EQ(found->second, weight) << "after " << rounds << " rounds";
    ++compared;
  }
  EXPECT_GE(compared, kRounds - 1);
}

TEST(Averaging, GoesOnFromACheckpointOfLocal) {
  const auto engine = make_threaded_engine();
  StoreOptions options;
  options.engine = engine.get();
  const auto local = KVStore::create("local", options);
  const NDArray weight = scalar(0, *engine);
  local->init({{"w", weight}});
  local->set_optimizer(optim::SGD{.lr = 0.5, .momentum = 0.5});
  step(*local, *engine, weight, -1);
  const StoreState state = local->save();
  step(*local, *engine, weight, -1);
  ClusterInProcess cluster({.mode = "dist_local:steps=1", .engine = engine.get()});
  cluster.run([&](int worker, KVStore& store) {
    const NDArray mine = begin(cluster, worker, store, optim::SGD{.lr = 0.5, .momentum = 0.5});
    store.load(worker == 0 ? state : StoreState{});
    step(store, *engine, mine, -1);
    EXPECT_EQ(mine.item<double>(), weight.item<double>());
  });
}

// A checkpoint in which the key w has the weight 7.
StoreState state_of_seven(Engine& engine) {
  StoreOptions options;
  options.engine = &engine;
  const auto local = KVStore::create("local", options);
  local->init({{"w", scalar(7, engine)}});
  return local->save();
}

// What the others pass does not count.
TEST(Averaging, AStateThatCannotBeReadIsRefusedByAllWorkersOrByNone) {
  const auto engine = make_threaded_engine();
  const StoreState state = state_of_seven(*engine);
  StoreState broken = state;
  broken.counters.emplace_back("examples:w", "many");
  ClusterInProcess cluster({.mode = "dist_local:steps=1", .engine = engine.get()});
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = begin(cluster, worker, store, optim::SGD{.lr = 1});
    EXPECT_THROW(store.load(worker == 0 ? broken : StoreState{}), InvalidArgument);
    store.load(worker == 0 ? state : broken);
    EXPECT_EQ(weight.item<double>(), 7);
  });
}

TEST(Averaging, AWorkersStateOfOtherRulesLeavesTheWeightsAlone) {
  const auto engine = make_threaded_engine();
  StoreState state = state_of_seven(*engine);
  state.arrays.emplace_back("worker0:w/mean", scalar(1, *engine));
  ClusterInProcess cluster({.mode = "dist_local:steps=1", .engine = engine.get()});
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = begin(cluster, worker, store, optim::SGD{.lr = 1});
    EXPECT_EQ(error_of_call([&] { store.load(worker == 0 ? state : StoreState{}); }),
              "key 'w' has no state 'mean' under these rules")
        << worker;
    store.barrier();
    store.pull("w", weight);
    EXPECT_EQ(weight.item<double>(), 0) << worker;
  });
}

TEST(Averaging, AWorkerKeepsNoStateThatItRefuses) {
  LocalState rule([] { return NamedArrays(); },
                  [](const NamedArrays& state) { require(state.empty(), "there is a state"); });
  EXPECT_THROW(rule.load({{"w/mean", NDArray::zeros(Shape{1})}}), InvalidArgument);
  EXPECT_TRUE(rule.take_loaded().empty());
}

// The server's policy of the same name keeps no state, so it refuses the second table when it has loaded the first.
TEST(RowTables, ALoadThatFailsHalfwayForgetsTheVersionsOfRows) {
  const Extensions own{.policies = {{"traced", std::make_shared<Traced>()}}};
  const Extensions stateless{.policies = {{"traced", make_staleness("none", {})}}};
  const auto engine = make_serial_engine();
  const TableSpec first{"first", 3, 1, DType::kFloat32, Spec::parse("zeros")};
  const TableSpec second{"second", 3, 1, DType::kFloat32, Spec::parse("zeros")};
  StoreState state;
  for (const TableSpec& table : {first, second}) {
    const std::string name = "table:" + table.name;
    state.arrays.emplace_back(name + ":ids", ids_of({0}, *engine));
    state.arrays.emplace_back(name + ":versions", ids_of({1}, *engine));
    state.arrays.emplace_back(name + ":weight", rows_of({5}, 1, *engine));
  }
  state.arrays.emplace_back("table:second:traced_trace", rows_of({5}, 1, *engine));
  ClusterInProcess cluster({.mode = "dist_async:staleness=traced",
                            .workers = 1,
                            .servers = 1,
                            .engine = engine.get(),
                            .own = own,
                            .own_of_servers = stateless});
  cluster.run([&](int, KVStore& store) {
    store.init_table(first);
    store.init_table(second);
    store.set_optimizer(optim::SGD{.lr = 1});
    const auto push = [&] { store.push_rows({{"first", ids_of({0}, *engine), rows_of({-1}, 1, *engine)}}); };
    for (int i = 0; i < 3; ++i) push();
    EXPECT_EQ(pull(store, first, {0}, *engine), std::vector<float>{3});
    EXPECT_EQ(error_of_call([&] { store.load(state); }),
              "the state is loaded in part, until a load succeeds: "
              "table 'second' has no state 'traced_trace' under these rules");
    push();
    EXPECT_EQ(pull(store, first, {0}, *engine), std::vector<float>{6});
  });
}

TEST(Averaging, RefusesCodecsThatVote) {
  EXPECT_THROW(KVStore::check("dist_local:steps=2,compression=sign,majority=1"), InvalidArgument);
  EXPECT_NO_THROW(KVStore::check("dist_local:steps=2,compression=sign"));
}

TEST(Averaging, RefusesWhatItDoesNotHave) {
  const auto error = [](const std::string& mode) { return error_of_call([&] { KVStore::create(mode); }); };
  EXPECT_NE(error("dist_local:averaging=mean").find("average elastic federated"), std::string::npos);
  EXPECT_NE(error("dist_local:steps=0").find("steps"), std::string::npos);
  EXPECT_NE(error("dist_local:alpha=0.5").find("elastic"), std::string::npos);
  EXPECT_NE(error("dist_local:averaging=federated,fraction=2").find("fraction"), std::string::npos);
}

}  // namespace
}  // namespace paceline::test
