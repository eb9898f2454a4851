// Any text may name a key or a table: nothing that a state, a message or a pattern does with names confuses two of
// them.
#include <gtest/gtest.h>
#include <paceline/error.h>

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/saved_names.h"
#include "checkpoint/saved_state.h"
#include "one_key.h"
#include "row_support.h"

namespace paceline::test {
namespace {

// What separates parts of names anywhere, and what the escape is made of.
std::vector<std::string> odd_names() {
  return {":",
          "::",
          ":.",
          "::.",
          "a:b",
          "a::b",
          "a:",
          ":a",
          "a:momentum",
          "worker0",
          "worker0:w",
          "worker0:",
          "worker0:w/velocity",
          "table",
          "table:",
          "table:t",
          "table:t:ids",
          "version:w",
          "examples:table:t",
          "clock",
          "w/velocity",
          "w",
          "w:",
          "x\ny\n3",
          "\n",
          " ",
          "%3A",
          "\"q\"\\",
          "store:w",
          "ключ:вес",
          ":refused",
          ":whole",
          "__metadata__"};
}

// As names of states are put together, nothing is taken for anything else.
TEST(KeyNames, AreFoundAgainInAState) {
  const std::vector<std::string> names = odd_names();
  SavedStore saved;
  float value = 0;
  const auto next = [&] { return NDArray::full(Shape{1}, ++value); };
  for (const std::string& name : names) {
    saved.keys[name] = {next(), {{"momentum", next()}, {"gap_aware_mean_square", next()}}, {}};
    saved.keys[name].counters = {static_cast<std::uint64_t>(value), 2, 3, 4};
    saved.workers[0].emplace_back(name + "/velocity", next());
    saved.workers[12].emplace_back(name + "/:counters", next());
  }
  StoreState state = saved.write();
  for (const std::string& name : names)
    for (const std::string slot : {"ids", "versions", "weight", "momentum"})
      state.arrays.emplace_back(saved_table(name) + ":" + slot, next());
  std::set<std::string> different;
  for (const auto& [name, array] : state.arrays) EXPECT_TRUE(different.insert(name).second) << name;
  std::reverse(state.arrays.begin(), state.arrays.end());

  const SavedStore read = SavedStore::read(state);
  ASSERT_EQ(read.keys.size(), names.size());
  for (const auto& [name, key] : saved.keys) {
    SCOPED_TRACE(name);
    ASSERT_EQ(read.keys.count(name), 1U);
    const SavedKey& found = read.keys.at(name);
    EXPECT_EQ(found.weight.item<float>(), key.weight.item<float>());
    ASSERT_EQ(found.slots.size(), 2U);
    for (const auto& [slot, array] : key.slots) EXPECT_EQ(found.slots.at(slot).item<float>(), array.item<float>());
    EXPECT_EQ(found.counters.version, key.counters.version);
    EXPECT_EQ(found.counters.policy_updates, 4);
  }
  EXPECT_EQ(read.tables, (std::set<std::string>(names.begin(), names.end())));
  ASSERT_EQ(read.workers.size(), 2U);
  for (const auto& [rank, arrays] : saved.workers) {
    std::map<std::string, float> wanted, found;
    for (const auto& [name, array] : arrays) wanted[name] = array.item<float>();
    for (const auto& [name, array] : read.workers.at(rank)) found[name] = array.item<float>();
    EXPECT_EQ(found, wanted);
  }
}

// Names as 0.1.0 wrote them.
TEST(KeyNames, OfEarlierFilesAreRead) {
  const auto array = [](float value) { return NDArray::full(Shape{1}, value); };
  StoreState state;
  state.arrays = {{"0.weight", array(1)},
                  {"0.weight:momentum", array(2)},
                  {"50%25 .", array(3)},
                  {"worker3:0.weight/velocity", array(4)},
                  {"worker3:0.weight/:counters", array(5)},
                  {"table:words:ids", array(6)},
                  {"table:words:weight", array(7)}};
  state.counters = {{"version:0.weight", "8"}, {"examples:0.weight", "9"}, {"examples:table:words", "10"}};
  const SavedStore read = SavedStore::read(state);
  EXPECT_EQ(read.keys.at("0.weight").slots.at("momentum").item<float>(), 2);
  EXPECT_EQ(read.keys.at("0.weight").counters.version, 8U);
  EXPECT_EQ(read.keys.at("0.weight").counters.examples, 9);
  EXPECT_EQ(read.keys.at("50%25 .").weight.item<float>(), 3);
  EXPECT_EQ(read.keys.size(), 2U);
  ASSERT_EQ(read.workers.at(3).size(), 2U);
  EXPECT_EQ(read.workers.at(3)[0].first, "0.weight/velocity");
  EXPECT_EQ(read.workers.at(3)[1].first, "0.weight/:counters");
  EXPECT_EQ(read.tables, std::set<std::string>{"words"});
  // And written as 0.1.0 did.
  StoreState again = read.write();
  std::set<std::string> names;
  for (const auto& [name, one] : again.arrays) names.insert(name);
  EXPECT_EQ(names, (std::set<std::string>{"0.weight", "0.weight:momentum", "50%25 .", "worker3:0.weight/velocity",
                                          "worker3:0.weight/:counters"}));
}

// In every mode: state of the servers and of the workers comes back under its key, in another job.
TEST(KeyNames, GoThroughACheckpointInEveryMode) {
  const std::vector<std::string> names = odd_names();
  const auto engine = make_threaded_engine();
  const auto train = [&](KVStore& store, const std::vector<NDArray>& weights, int steps) {
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < names.size(); ++i)
        store.push_pull({{names[i], NDArray::full(Shape{1}, static_cast<float>(i), DType::kFloat32, {}, *engine)}},
                        {{names[i], weights[i]}});
      store.step_end();
      for (const NDArray& weight : weights) weight.wait();
    }
  };
  const auto begin = [&](KVStore& store) {
    std::vector<InitValue> values;
    std::vector<NDArray> weights;
    for (const std::string& name : names) {
      weights.push_back(NDArray::zeros(Shape{1}, DType::kFloat32, {}, *engine));
      values.push_back({name, weights.back()});
    }
    store.init(values);
    store.set_optimizer(optim::SGD{.lr = 0.5, .momentum = 0.5});
    return weights;
  };
  const auto values_of = [](const std::vector<NDArray>& weights) {
    std::vector<float> values;
    for (const NDArray& weight : weights) values.push_back(weight.item<float>());
    return values;
  };
  for (const std::string mode : {"local", "dist_sync", "dist_async:staleness=dana", "dist_async:staleness=gap_aware",
                                 "dist_sync:compression=dgc,min_bytes=0", "dist_local", "ring", "gossip"}) {
    SCOPED_TRACE(mode);
    const auto in_a_job = [&](const std::function<void(KVStore&)>& work) {
      if (mode == "local") {
        StoreOptions options;
        options.engine = engine.get();
        return work(*KVStore::create(mode, options));
      }
      const bool alone = mode == "ring" || mode == "gossip";
      ClusterInProcess cluster({.mode = mode, .workers = 1, .servers = alone ? 0 : 2, .engine = engine.get()});
      cluster.run([&](int, KVStore& store) { work(store); });
    };
    StoreState state;
    std::vector<float> uninterrupted, resumed;
    in_a_job([&](KVStore& store) {
      const std::vector<NDArray> weights = begin(store);
      train(store, weights, 3);
      state = store.save();
      train(store, weights, 3);
      uninterrupted = values_of(weights);
    });
    in_a_job([&](KVStore& store) {
      const std::vector<NDArray> weights = begin(store);
      store.load(state);
      train(store, weights, 3);
      resumed = values_of(weights);
    });
    EXPECT_EQ(resumed, uninterrupted);
    EXPECT_NE(resumed, std::vector<float>(names.size(), 0));
  }
}

TEST(KeyNames, OfTablesGoThroughACheckpoint) {
  const std::vector<std::string> names = odd_names();
  const auto engine = make_threaded_engine();
  for (const std::string mode : {"local", "dist_sync"}) {
    StoreState state;
    for (const bool loads : {false, true}) {
      SCOPED_TRACE(mode);
      const auto work = [&](KVStore& store) {
        store.set_optimizer(optim::SGD{.lr = 1});
        // A key for each table, named as its rows are in a state.
        for (const std::string& name : names) {
          store.init_table({.name = name, .rows = 20, .width = 1});
          const NDArray key = NDArray::zeros(Shape{1}, DType::kFloat32, {}, *engine);
          store.init({{"table:" + name, key}});
        }
        if (loads) {
          store.load(state);
        } else {
          for (std::size_t i = 0; i < names.size(); ++i)
            store.push_rows({{names[i], ids_of({7}, *engine), rows_of({-static_cast<float>(i + 1)}, 1, *engine)}});
          store.step_end();
          state = store.save();
        }
        for (std::size_t i = 0; i < names.size(); ++i) {
          const TableSpec table{.name = names[i], .rows = 20, .width = 1};
          EXPECT_EQ(pull(store, table, {6, 7}, *engine), (std::vector<float>{0, static_cast<float>(i + 1)}))
              << names[i];
        }
      };
      if (mode == "local") {
        StoreOptions options;
        options.engine = engine.get();
        work(*KVStore::create(mode, options));
      } else {
        ClusterInProcess cluster({.mode = mode, .workers = 1, .engine = engine.get()});
        cluster.run([&](int, KVStore& store) { work(store); });
      }
    }
  }
}

TEST(KeyNames, AreNeitherEmptyNorEndless) {
  const auto store = KVStore::create("local");
  const NDArray value = NDArray::zeros(Shape{1});
  EXPECT_EQ(error_of_call([&] { store->init({{"", value}}); }), "a key's name has 0 bytes, expected 1 to 2000");
  EXPECT_EQ(error_of_call([&] {
              store->init({{std::string(2001, 'x'), value}});
            }),
            "a key's name has 2001 bytes, expected 1 to 2000");
  EXPECT_EQ(error_of_call([&] { store->init({{std::string(2000, ':'), value}}); }), "");
  EXPECT_EQ(error_of_call([&] { store->init_table({.name = "", .rows = 1, .width = 1}); }), "a table's name is empty");
}

}  // namespace
}  // namespace paceline::test
