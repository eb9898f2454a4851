// The store through real servers: versions, exactly-once, convergence limits, staleness policies.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <random>

#include "checkpoint/saved_state.h"
#include "failed_array.h"
#include "one_key.h"

namespace paceline::test {
namespace {

TEST(Store, AWorkerThatCannotJoinThrowsAndLeavesNothingBehind) {
  ClusterConfig config;
  config.transport = "inproc";
  config.scheduler_host = "nobody listens here";
  config.servers = 2;
  config.workers = 1;
  config.start_deadline_seconds = 0.3;
  EXPECT_THROW(KVStore::join(config, "dist_async"), NetworkError);
}

TEST(Store, ModesOfOneProcessJoinNoJob) {
  for (const char* const mode : {"local", "device"}) EXPECT_THROW(KVStore::join({}, mode), InvalidArgument) << mode;
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
        store.step_end();
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

// One worker calls the mode by another name than its peer: it is the same.
TEST(Store, KnowsTheModesByTheirOtherNames) {
  EXPECT_EQ(KVStore::create("nccl")->mode().name, "device");
  for (const char* mode : {"dist_device_sync", "dist_sync_device:backup=0"}) {
    ClusterInProcess cluster({.mode = mode});
    cluster.run([&](int worker, KVStore& store) {
      EXPECT_EQ(store.mode().name, "dist_sync");
      const NDArray w = array_of({0}, cluster.engine(worker));
      store.init({{"w", w}});
      store.set_optimizer(optim::SGD{.lr = 1});
      store.push_pull({{"w", array_of({worker + 1.0}, cluster.engine(worker))}}, {{"w", w}});
      store.step_end();
      EXPECT_EQ(w.item<double>(), -1.5);  // one round, of both
    });
  }
}

// More keys in a call than go into one task.
TEST(Store, ACallMayNameThousandsOfKeys) {
  constexpr int kKeys = 6000;
  for (const char* mode : {"dist_async:staleness=none", "dist_sync"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 1, .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      std::vector<InitValue> keys;
      std::vector<PushItem> pushes;
      std::vector<PullItem> pulls;
      for (int k = 0; k < kKeys; ++k) {
        keys.push_back({"key" + std::to_string(k), array_of({0}, engine)});
        pushes.push_back({keys.back().key, array_of({k % 7 + 1.0}, engine)});
        pulls.push_back({keys.back().key, keys.back().value});
      }
      store.init(keys);
      store.set_optimizer(optim::SGD{.lr = 1});
      for (int step = 0; step < 3; ++step) {
        store.push_pull(pushes, pulls);
        store.step_end();
      }
      std::swap(pushes[5999], pushes[0]);
      store.push_pull(pushes, {});
      store.step_end();
      store.push_pull({}, pulls);
      int wrong = 0;
      for (int k = 0; k < kKeys; ++k)
        wrong += keys[static_cast<std::size_t>(k)].value.item<double>() != -4 * (k % 7 + 1);
      EXPECT_EQ(wrong, 0);
    });
  }
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
          store.step_end();
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

TEST(Store, AnEmptyArrayWithoutMemoryCountsInItsRound) {
  ClusterInProcess cluster({.mode = "dist_sync"});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = NDArray::zeros(Shape{0}, DType::kFloat64, {}, engine);
    store.init({{"empty", weight}});
    store.set_optimizer(optim::SGD{.lr = 1});
    const NDArray none = NDArray::wrap(nullptr, Shape{0}, DType::kFloat64, nullptr, engine);
    for (int step = 0; step < 3; ++step) {
      store.push_pull({{"empty", none}}, {{"empty", weight}});
      weight.wait();
      store.step_end();
    }
  });
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
      store.step_end();
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
      store.step_end();
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

// Resuming with another network would train something else than the checkpoint says.
TEST(Store, AStateOfMoreKeysIsRefusedByAllWorkers) {
  const auto engine = make_threaded_engine();
  const auto key = [&](const std::string& name) {
    return InitValue{name, NDArray::zeros(Shape{2}, DType::kFloat32, {}, *engine)};
  };
  StoreOptions options;
  options.engine = engine.get();
  const auto larger = KVStore::create("local", options);
  larger->init({key("a"), key("b"), key("c"), key("d"), key("w")});
  const StoreState state = larger->save();
  const std::string expected = "the checkpoint has 'a', 'b', 'c' and 1 more, which this job's network does not have";
  for (const char* mode : {"local", "device"}) {
    const auto store = KVStore::create(mode, options);
    store->init({key("w")});
    EXPECT_EQ(error_of_call([&] { store->load(state); }), expected) << mode;
  }
  for (const char* mode : {"dist_sync", "dist_async", "dist_local:steps=2", "ring", "gossip"}) {
    SCOPED_TRACE(mode);
    const bool alone = mode == std::string("ring") || mode == std::string("gossip");
    ClusterInProcess cluster({.mode = mode, .servers = alone ? 0 : 1, .engine = engine.get()});
    cluster.run([&](int worker, KVStore& store) {
      const InitValue kept = key("w");
      store.init({kept});
      store.set_optimizer(optim::SGD{});
      const std::string error = error_of_call([&] { store.load(worker == 0 ? state : StoreState{}); });
      EXPECT_EQ(error, expected) << worker;
      store.push_pull({{"w", NDArray::full(Shape{2}, 1, DType::kFloat32, {}, *engine)}}, {{"w", kept.value}});
      store.step_end();
      kept.value.wait();  // the job goes on
    });
  }
}

TEST(Store, AStateOfAnotherShapeLeavesEveryKeyAlone) {
  const auto key = [](const std::string& name, float value, const Shape& shape) {
    return InitValue{name, NDArray::full(shape, value)};
  };
  const auto other = KVStore::create("local");
  other->init({key("a", 5, {2}), key("b", 5, {3})});
  const StoreState state = other->save();
  for (const char* mode : {"local", "device"}) {
    SCOPED_TRACE(mode);
    const auto store = KVStore::create(mode);
    store->init({key("a", 1, {2}), key("b", 1, {2})});
    EXPECT_THROW(store->load(state), InvalidArgument);
    const NDArray weight = NDArray::zeros(Shape{2});
    store->pull("a", weight);
    EXPECT_EQ(weight.to_vector<float>(), (std::vector<float>{1, 1}));
  }
}

// Calls `work` for each worker of a job of this mode, with its store. `engine` is of all arrays.
void run_in(const std::string& mode, Engine& engine, const std::function<void(int, KVStore&)>& work) {
  if (mode == "local" || mode == "device") {
    StoreOptions options;
    options.engine = &engine;
    return work(0, *KVStore::create(mode, options));
  }
  const bool alone = mode == "ring" || mode == "gossip";
  ClusterInProcess cluster({.mode = mode, .servers = alone ? 0 : 1, .engine = &engine});
  cluster.run(work);
}

// Key "a" fits, and comes before the key "b", which does not.
TEST(Store, AStateOfOtherRulesLeavesEveryKeyAlone) {
  const auto engine = make_threaded_engine();
  const auto full = [&](float value) { return NDArray::full(Shape{2}, value, DType::kFloat32, {}, *engine); };
  const NDArray unread = full(5);
  fail(unread);
  const StoreState of_momentum{{{"a", full(5)}, {"b", full(5)}, {"b:momentum", full(5)}}, {}};
  const StoreState broken{{{"a", full(5)}, {"b", unread}}, {}};
  for (const char* mode :
       {"local", "device", "dist_sync", "dist_async:staleness=none", "dist_local:steps=2", "ring", "gossip"}) {
    SCOPED_TRACE(mode);
    run_in(mode, *engine, [&](int worker, KVStore& store) {
      const NDArray a = full(1), b = full(1);
      store.init({{"a", a}, {"b", b}});
      store.set_optimizer(optim::SGD{.lr = 1});
      const auto refusal_of = [&](const StoreState& state) {
        return error_of_call([&] { store.load(worker == 0 ? state : StoreState{}); });
      };
      EXPECT_EQ(refusal_of(of_momentum), "key 'b' has no state 'momentum' under these rules") << worker;
      EXPECT_NE(refusal_of(broken), "") << worker;
      store.barrier();
      store.pull({"a", "b"}, {a, b});
      for (const NDArray& weight : {a, b}) EXPECT_EQ(weight.to_vector<float>(), (std::vector<float>{1, 1})) << worker;
    });
  }
}

TEST(Store, ATableOfOtherRulesLeavesKeysAndTablesAlone) {
  const auto engine = make_threaded_engine();
  const TableSpec first{.name = "first", .rows = 3, .width = 1}, second{.name = "second", .rows = 3, .width = 1};
  const auto full = [&](const Shape& shape, float value) {
    return NDArray::full(shape, value, DType::kFloat32, {}, *engine);
  };
  StoreState state{{{"w", full({1}, 5)}}, {}};
  for (const TableSpec& table : {first, second}) {
    const std::string name = "table:" + table.name;
    state.arrays.emplace_back(name + ":ids", NDArray::from<std::int64_t>({0}, Shape{1}, {}, *engine));
    state.arrays.emplace_back(name + ":versions", NDArray::from<std::int64_t>({1}, Shape{1}, {}, *engine));
    state.arrays.emplace_back(name + ":weight", full({1, 1}, 5));
  }
  state.arrays.emplace_back("table:second:momentum", full({1, 1}, 5));
  for (const char* mode : {"local", "dist_async:staleness=none"}) {
    SCOPED_TRACE(mode);
    run_in(mode, *engine, [&](int worker, KVStore& store) {
      const NDArray weight = full({1}, 1);
      store.init({{"w", weight}});
      store.init_table(first);
      store.init_table(second);
      store.set_optimizer(optim::SGD{.lr = 1});
      EXPECT_EQ(error_of_call([&] { store.load(worker == 0 ? state : StoreState{}); }),
                "table 'second' has no state 'momentum' under these rules");
      store.barrier();
      store.pull("w", weight);
      EXPECT_EQ(weight.to_vector<float>()[0], 1) << worker;
      EXPECT_EQ(store.report().rows_held, 0) << worker;
    });
  }
}

TEST(Store, ALoadAfterAFailedPushGivesTheWeightsOfTheState) {
  for (const char* mode : {"local", "device"}) {
    SCOPED_TRACE(mode);
    const auto store = KVStore::create(mode);
    const NDArray weight = NDArray::full(Shape{2}, 1), gradient = NDArray::full(Shape{2}, 1);
    store->init({{"w", weight}});
    store->set_optimizer(optim::SGD{.lr = 1});
    const StoreState state = store->save();
    fail(gradient);
    store->push_pull({{"w", gradient}}, {{"w", weight}});
    EXPECT_THROW(weight.wait(), InvalidArgument);
    EXPECT_EQ(error_of_call([&] { store->load(state); }), "");
    EXPECT_EQ(weight.to_vector<float>(), (std::vector<float>{1, 1}));
  }
}

TEST(Store, NegativeExamplesAreRefusedWithinOneProcess) {
  for (const char* mode : {"local", "device"}) {
    const auto store = KVStore::create(mode);
    store->init({{"w", NDArray::zeros(Shape{2})}});
    store->set_optimizer(optim::SGD{});
    EXPECT_THROW(store->push("w", NDArray::zeros(Shape{2}), -5), InvalidArgument) << mode;
  }
}

TEST(Store, AStateOfMoreTablesIsRefused) {
  const auto store = [](bool more) {
    auto made = KVStore::create("local");
    made->init_table({.name = "t", .rows = 5, .width = 2});
    if (more) made->init_table({.name = "u", .rows = 5, .width = 2});
    return made;
  };
  const StoreState state = store(true)->save();
  EXPECT_EQ(error_of_call([&] { store(true)->load(state); }), "");
  EXPECT_EQ(error_of_call([&] { store(false)->load(state); }),
            "the checkpoint has 'table:u', which this job's network does not have");
}

// Lists do what one call for each key does, in every mode.
TEST(Store, PushesAndPullsListsOfKeys) {
  const auto engine = make_threaded_engine();
  const auto array = [&](float value) { return NDArray::full(Shape{2}, value, DType::kFloat32, {}, *engine); };
  const auto all_are = [](const NDArray& found, float value) {
    EXPECT_EQ(found.to_vector<float>(), std::vector<float>(2, value));
  };
  const auto check = [&](KVStore& store) {
    const NDArray a = array(0), b = array(0), again = array(0);
    store.init({{"a", a}, {"b", b}});
    EXPECT_THROW(store.push({"a", "b"}, {array(1), array(2)}), InvalidArgument);  // no optimizer yet
    store.set_optimizer(optim::SGD{.lr = 1});
    EXPECT_EQ(
        error_of_call([&] {
          store.push({"a", "b"}, {array(1)});
        }),
        "a push of 2 keys has 1 arrays; give one array for each key, and name a key again for each further array");
    EXPECT_EQ(
        error_of_call([&] {
          store.pull({"a"}, {a, b});
        }),
        "a pull of 1 keys has 2 arrays; give one array for each key, and name a key again for each further array");
    EXPECT_NE(error_of_call([&] {
                store.push({"a", "c"}, {array(1), array(2)});
              }).find("'c' was not initialised"),
              std::string::npos);
    store.push({"a", "b"}, {array(-1), array(-2)});  // what was refused before has changed nothing
    store.step_end();
    store.pull({"b", "a", "b"}, {b, a, again});
    all_are(a, 1);
    all_are(b, 2);
    all_are(again, 2);
    store.push(std::vector<std::string>(), {});
    store.pull(std::vector<std::string>(), {});
    // As PushItem says: devices of one process in local and device, an error elsewhere.
    const std::string twice = error_of_call([&] {
      store.push({"a", "b", "a"}, {array(-1), array(-1), array(-3)});
      store.step_end();
      store.pull({"a"}, {a});
      a.wait();
    });
    if (!store.is_distributed()) {
      EXPECT_EQ(twice, "");
      all_are(a, 5);
    } else {
      EXPECT_NE(twice.find("twice"), std::string::npos) << twice;
    }
  };
  StoreOptions options;
  options.engine = engine.get();
  for (const char* mode : {"local", "device"}) {
    SCOPED_TRACE(mode);
    check(*KVStore::create(mode, options));
  }
  for (const std::string mode : {"dist_sync", "dist_async:staleness=none", "dist_local", "ring", "gossip"}) {
    SCOPED_TRACE(mode);
    const bool alone = mode == "ring" || mode == "gossip";
    ClusterInProcess cluster({.mode = mode, .workers = 1, .servers = alone ? 0 : 2, .engine = engine.get()});
    cluster.run([&](int, KVStore& store) { check(store); });
  }
}

TEST(Store, AnUnknownOptionIsToldWithThoseOfTheMode) {
  EXPECT_EQ(error_of_call([] { KVStore::create("dist_async:bund=3"); }),
            "unknown option 'bund' of mode 'dist_async'; known: bandwidth bound compression error_feedback except "
            "gap_decay min_bytes only pull rules staleness transport");
  EXPECT_NE(error_of_call([] { KVStore::create("dist_async:staleness=inverse_delay,powr=1"); }).find(" power "),
            std::string::npos);
  EXPECT_NE(error_of_call([] { KVStore::create("dist_sync:compression=top_k,rato=1"); }).find(" ratio "),
            std::string::npos);
  EXPECT_EQ(error_of_call([] { KVStore::create("dist_sync:min_bytes=8"); }),
            "option 'min_bytes' of mode 'dist_sync:min_bytes=8' is for gradients that are compressed; name a "
            "compression");
}

// Names of arrays tell a key's state from a worker's.
TEST(Store, AKeyMayBeNamedLikeAWorker) {
  const auto array = [](float value) { return NDArray::full(Shape{1}, value); };
  SavedStore saved;
  saved.keys["w"].weight = array(1);
  saved.keys["worker0"] = {array(2), {{"momentum", array(3)}}, {}};
  saved.workers[0] = {{"w/velocity", array(4)}, {"worker0/velocity", array(5)}};
  saved.workers[1] = {{"w/velocity", array(6)}};
  StoreState state = saved.write();
  std::reverse(state.arrays.begin(), state.arrays.end());
  SavedStore read = SavedStore::read(state);
  EXPECT_EQ(read.keys.size(), 2U);
  EXPECT_TRUE(read.keys["w"].slots.empty());
  EXPECT_EQ(read.keys["worker0"].weight.item<float>(), 2);
  ASSERT_EQ(read.keys["worker0"].slots.count("momentum"), 1U);
  EXPECT_EQ(read.keys["worker0"].slots["momentum"].item<float>(), 3);
  EXPECT_EQ(read.workers[0].size(), 2U);
  EXPECT_EQ(read.workers[1].size(), 1U);
}

}  // namespace
}  // namespace paceline::test
