// Updates that throw: what else becomes of the push or the round, and who hears of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvstore/failed_array.h>
#include <kvstore/row_support.h>
#include <paceline/compression.h>
#include <support/cluster_in_process.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "dense_partition.h"
#include "rows/row_partition.h"

namespace paceline::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// One worker alone in a job of each kind of mode that holds tables.
void in_each_job_with_tables(const std::function<void(KVStore&, Engine&)>& work) {
  for (const std::string mode : {"local", "dist_async"}) {
    SCOPED_TRACE(mode);
    Engine& engine = default_engine();  // a state outlives its job
    if (mode == "local") {
      work(*KVStore::create(mode), engine);
    } else {
      ClusterInProcess cluster({.mode = mode, .workers = 1, .engine = &engine});
      cluster.run([&](int, KVStore& store) { work(store, engine); });
    }
  }
}

// Throws where a gradient is 13.
class Unlucky final : public Staleness {
 public:
  std::vector<std::string> state_names() const override { return {"nothing"}; }
  void correct(const Tile<float>& tile, const StaleContext&) const override { run(tile); }
  void correct(const Tile<double>& tile, const StaleContext&) const override { run(tile); }

 private:
  template <class T>
  static void run(const Tile<T>& tile) {
    for (std::int64_t i = 0; i < tile.count; ++i) require(tile.gradient[i] != 13, "a gradient of thirteen");
  }
};

Extensions unlucky() { return {.modes = {}, .policies = {{"unlucky", std::make_shared<Unlucky>()}}, .codecs = {}}; }

constexpr WorkerIncarnation kWorker{0, 7};

TEST(FailedUpdate, LeavesTheOtherSlicesOfAPushAlone) {
  const float zero = 0;
  const auto slice = [](const char* name) { return SliceInfo{name, 0, 1, DType::kFloat32}; };
  const std::vector<std::pair<SliceInfo, const void*>> slices{{slice("a"), &zero}, {slice("b"), &zero}};
  DensePartition partition(0, slices, unlucky());
  RulesEntry rules{{}, Spec::parse("sgd:lr=1"), "unlucky", {}};
  partition.apply(rules);
  const float bad = 13, good = -1;
  std::vector<SliceContribution> gradients{{0, {0, 0, 1, &bad}}, {1, {0, 0, 1, &good}}};
  PushEntry push;
  push.from = kWorker;
  push.sequence = 1;
  push.gradients = gradients;
  EXPECT_THAT(error_of_call([&] { partition.apply(push); }), HasSubstr("thirteen"));
  EXPECT_EQ(partition.version(0), 0);
  EXPECT_EQ(partition.version(1), 1);
  EXPECT_TRUE(partition.is_taken(kWorker, 1));
}

TEST(FailedUpdate, LeavesTheOtherRowsOfAPushAlone) {
  const TableSpec spec = table_of(10, 1, "zeros");
  RowPartition partition(spec, TableLayout(spec, 1), 0, unlucky());
  RulesEntry rules{{}, Spec::parse("sgd:lr=1"), "unlucky", {}};
  partition.apply(rules);
  const std::vector<std::int64_t> ids{2, 5};
  const std::vector<std::uint64_t> pulled(2, kNeverPulled);
  const std::vector<float> values{13, -1};
  RowPushEntry push;
  push.from = kWorker;
  push.sequence = 1;
  push.rows.worker = kWorker.worker;
  push.rows.ids = ids;
  push.rows.versions = pulled.data();
  push.rows.values = reinterpret_cast<const std::byte*>(values.data());
  EXPECT_THAT(error_of_call([&] { partition.apply(push); }), HasSubstr("thirteen"));
  std::vector<std::uint64_t> versions(2);
  std::vector<float> weights(2);
  RowReadEntry read{{}, kWorker, 1, ids};
  const RowAnswer answer{0, 1, versions.data(), reinterpret_cast<std::byte*>(weights.data())};
  partition.apply(read, &answer);
  EXPECT_EQ(versions, (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(weights, (std::vector<float>{0, 1}));
}

TEST(FailedUpdate, APushOfAnEarlierIncarnationLeavesTheLaterOnesWindowAlone) {
  constexpr WorkerIncarnation kLater{kWorker.worker, kWorker.incarnation + 1};
  const float zero = 0;
  const std::vector<std::pair<SliceInfo, const void*>> slices{{SliceInfo{"a", 0, 1, DType::kFloat32}, &zero}};
  DensePartition dense(0, slices);
  const TableSpec spec = table_of(10, 1, "zeros");
  RowPartition rows(spec, TableLayout(spec, 1), 0);
  const auto expect_refusal = [&](auto& partition, auto push) {
    push.from = kLater;
    push.sequence = 1;
    partition.apply(push);
    push.from = kWorker;
    push.sequence = 2;
    EXPECT_THAT(error_of_call([&] { partition.apply(push); }), HasSubstr("has returned since this push was sent"));
    EXPECT_TRUE(partition.is_taken(kLater, 1));
    EXPECT_FALSE(partition.is_taken(kLater, 2));
  };
  expect_refusal(dense, PushEntry());
  expect_refusal(rows, RowPushEntry());
}

// Encodes nothing that begins with 13.
class Picky final : public Codec {
 public:
  std::size_t max_bytes(std::int64_t count) const override { return sizeof(float) * static_cast<std::size_t>(count); }
  std::size_t encode(std::span<const float> values, const EncodeContext&, std::span<float* const>,
                     std::byte* out) const override {
    require(values[0] != 13, "a weight of thirteen");
    std::memcpy(out, values.data(), values.size_bytes());
    return values.size_bytes();
  }
  void check(EncodedBytes bytes, std::int64_t count) const override {
    if (bytes.size() != max_bytes(count)) throw Corrupt(str(bytes.size(), " bytes for ", count, " elements"));
  }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    std::memcpy(out.data(), bytes.data() + static_cast<std::size_t>(begin) * sizeof(float), out.size_bytes());
  }
  bool biased() const override { return false; }
  bool suits_weights() const override { return true; }
};

TEST(FailedAnswer, IsHeardByThoseWhoPulledAlone) {
  const Extensions own{.modes = {}, .policies = {}, .codecs = {{"picky", std::make_shared<Picky>()}}};
  ClusterInProcess cluster(
      {.mode = "dist_sync:compression=picky", .workers = 3, .servers = 1, .serial = false, .own = own});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = NDArray::zeros(Shape{2048}, DType::kFloat32, {}, engine);
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{.lr = 1});
    // Worker 2 completes the round once the pulls of the others wait for it.
    const auto waits = [&](std::size_t other) { return store.report().waits.at(other).times > 0; };
    while (worker == 2 && !(waits(0) && waits(1))) std::this_thread::sleep_for(1ms);
    store.push("w", NDArray::full(Shape{2048}, -13, DType::kFloat32, {}, engine));
    if (worker == 2) {
      store.backend().data_begin(0, {});  // waits for the push
      EXPECT_EQ(error_of_call([&] { store.backend().data_take_over(0, false); }), "");
      return;
    }
    EXPECT_THAT(error_of_call([&] {
                  store.pull("w", weight);
                  weight.wait();
                }),
                HasSubstr("thirteen"));
  });
  cluster.abandon();
}

TEST(FailedUpdate, OfRowsIsForgottenByALoad) {
  in_each_job_with_tables([](KVStore& store, Engine& engine) {
    const TableSpec table = table_of(10, 2);
    store.set_optimizer(optim::SGD{.lr = 1});
    store.init_table(table);
    store.push_rows({{"table", ids_of({1}, engine), rows_of({1, 2}, 2, engine)}});
    const std::vector<float> saved = pull(store, table, {1}, engine);
    const StoreState state = store.save();
    store.push_rows({{"table", ids_of({99}, engine), rows_of({1, 2}, 2, engine)}});
    EXPECT_THAT(error_of_call([&] { pull(store, table, {1}, engine); }), HasSubstr("names row 99"));
    store.load(state);
    std::vector<float> loaded;
    EXPECT_NO_THROW(loaded = pull(store, table, {1}, engine));
    EXPECT_EQ(loaded, saved);
  });
}

TEST(FailedPull, OfRowsLeavesLaterPullsAlone) {
  in_each_job_with_tables([](KVStore& store, Engine& engine) {
    const TableSpec table = table_of(1000, 2);
    store.init_table(table);
    const std::vector<float> before = pull(store, table, {1}, engine);
    EXPECT_THAT(error_of_call([&] { pull(store, table, {1000}, engine); }), HasSubstr("names row 1000"));
    std::vector<float> after;
    EXPECT_NO_THROW(after = pull(store, table, {1}, engine));
    EXPECT_EQ(after, before);
  });
}

TEST(FailedPull, OfRowsIntoAPartOfAnArrayFailsTheArray) {
  in_each_job_with_tables([](KVStore& store, Engine& engine) {
    const TableSpec table = table_of(10, 2);
    store.init_table(table);
    const NDArray out = NDArray::zeros(Shape{2, 2}, DType::kFloat32, {}, engine);
    store.pull_rows({{"table", ids_of({10}, engine), out.narrow(0, 0, 1)}});
    store.pull_rows({{"table", ids_of({9}, engine), out.narrow(0, 1, 2)}});
    EXPECT_THAT(error_of_call([&] { out.wait(); }), HasSubstr("names row 10"));
    store.pull_rows({{"table", ids_of({8, 9}, engine), out}});
    EXPECT_NO_THROW(out.wait());
  });
}

// Local weights that are updated in place, beside others.
TEST(FailedUpdate, IsNotCounted) {
  const auto store = KVStore::create("local");
  const auto array_of = [](float value) { return NDArray::full(Shape{3}, value); };
  const NDArray shared = array_of(1), copied = array_of(1);
  store->init({{.key = "copied", .value = copied}, {.key = "shared", .value = shared, .shared = true}});
  store->set_optimizer(optim::Adam{.lr = 0.1});
  const NDArray failed = array_of(1);
  fail(failed);
  for (const NDArray& gradient : {array_of(1), failed, array_of(-0.5)})
    store->push_pull({{"copied", gradient}, {"shared", gradient}}, {}, 5);
  store->push_pull({}, {{"copied", copied}, {"shared", shared}});
  EXPECT_EQ(shared.to_vector<float>(), copied.to_vector<float>());
  EXPECT_EQ(store->report().pushes, 4);
  std::map<std::string, std::string> counters[2];
  for (const auto& [name, value] : store->save().counters)
    counters[name.ends_with(":shared") ? 1 : 0][name.substr(0, name.find(':'))] = value;
  EXPECT_EQ(counters[1], counters[0]);
  EXPECT_EQ(counters[1].at("version"), "2");
}

// Though the next round is applied, and nobody has asked for the weights between the two.
TEST(FailedRound, IsHeardByAllWhoContributed) {
  for (const bool rows : {false, true}) {
    SCOPED_TRACE(rows);
    ClusterInProcess cluster({.mode = "dist_sync:staleness=unlucky", .servers = 1, .serial = false, .own = unlucky()});
    const TableSpec table = table_of(3, 1, "zeros");
    std::vector<std::string> heard(2);
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = NDArray::zeros(Shape{1}, DType::kFloat32, {}, engine);
      store.init({{"w", weight}});
      store.init_table(table);
      store.set_optimizer(optim::SGD{.lr = 1});
      for (const float gradient : {13, -1}) {
        const NDArray value = NDArray::full(Shape{1}, gradient, DType::kFloat32, {}, engine);
        if (rows)
          store.push_rows({{table.name, ids_of({1}, engine), value.view({1, 1})}});
        else
          store.push("w", value);
        store.step_end();
      }
      heard[static_cast<std::size_t>(worker)] = error_of_call([&] {
        if (rows) pull(store, table, {1}, engine);
        store.pull("w", weight);
        weight.wait();
      });
    });
    for (const std::string& error : heard) EXPECT_THAT(error, HasSubstr("thirteen"));
    cluster.abandon();
  }
}

TEST(FailedRound, APullThatItHeldBackHasWaited) {
  for (const bool rows : {false, true}) {
    SCOPED_TRACE(rows);
    ClusterInProcess cluster({.mode = "dist_sync:staleness=unlucky", .servers = 1, .serial = false, .own = unlucky()});
    const TableSpec table = table_of(3, 1, "zeros");
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = NDArray::zeros(Shape{1}, DType::kFloat32, {}, engine);
      const NDArray value = NDArray::full(Shape{1}, 13, DType::kFloat32, {}, engine);
      store.init({{"w", weight}});
      store.init_table(table);
      store.set_optimizer(optim::SGD{.lr = 1});
      // Worker 1 completes the round once the pull of worker 0 waits for it.
      if (worker == 1) {
        while (store.report().waits.at(0).times == 0) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(3ms);
      }
      if (rows)
        store.push_rows({{table.name, ids_of({1}, engine), value.view({1, 1})}});
      else
        store.push("w", value);
      if (worker == 1) return;
      const std::string refusal = error_of_call([&] {
        if (rows) pull(store, table, {1}, engine);
        store.pull("w", weight);
        weight.wait();
      });
      EXPECT_THAT(refusal, HasSubstr("thirteen"));
      EXPECT_GE(store.report().waits.at(0).seconds, 0.003);
    });
    cluster.abandon();
  }
}

}  // namespace
}  // namespace paceline::test
