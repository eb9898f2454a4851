// Row-sparse tables against dense keys and through real servers.
#include <gmock/gmock.h>
#include <paceline/detail/array_builder.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "row_support.h"

namespace paceline::test {
namespace {

// The same updates on a dense key and on a table give the same rows, bit for bit.
TEST(RowTables, LocalSgdEqualsADenseKey) {
  const auto engine = make_serial_engine();
  StoreOptions options;
  options.engine = engine.get();
  const auto store = KVStore::create("local", options);
  const TableSpec table = table_of(300, 9);
  store->init_table(table);
  const std::vector<float> initial = pull(*store, table, all_rows(table), *engine);
  const NDArray dense = NDArray::from<float>(initial, Shape{300, 9}, {}, *engine);
  store->init({{"dense", dense}});
  store->set_optimizer(Spec::parse("sgd:lr=0.1,rescale=0.5,clip_gradient=0.4"));
  std::mt19937 random(7);
  for (int step = 0; step < 20; ++step) {
    const Ids ids = random_ids(random, table.rows, 50);
    const std::vector<float> values = random_values(random, 50 * 9);
    std::vector<float> sum(300 * 9);
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (std::size_t e = 0; e < 9; ++e) sum[static_cast<std::size_t>(ids[i]) * 9 + e] += values[i * 9 + e];
    store->push_rows({{"table", ids_of(ids, *engine), rows_of(values, 9, *engine)}});
    store->push("dense", NDArray::from<float>(sum, Shape{300, 9}, {}, *engine));
  }
  store->pull("dense", dense);
  EXPECT_EQ(pull(*store, table, all_rows(table), *engine), dense.to_vector<float>());
  EXPECT_GT(store->report().rows_held, 250);
}

// Each row is a dense key of its own: the same versions, delays and states. Three workers push and pull in a random
// order, each what it likes.
void compare_with_keys(const std::string& staleness, const Spec& optimizer, DType dtype) {
  constexpr std::int64_t kRows = 12, kWidth = 5;
  constexpr int kWorkers = 3;
  ClusterInProcess cluster({.mode = "dist_async:staleness=" + staleness, .workers = kWorkers});
  const TableSpec table = table_of(kRows, kWidth, "uniform:bound=1,seed=9", dtype);
  const auto key_of = [](std::int64_t row) { return "row" + std::to_string(row); };
  std::vector<std::vector<NDArray>> rows(kWorkers), keys(kWorkers);
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    store.init_table(table);
    std::vector<InitValue> values;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const NDArray one = NDArray::zeros(Shape{1, kWidth}, dtype, {}, engine);
      store.pull_rows({{"table", ids_of({row}, engine), one}});
      values.push_back({key_of(row), one.clone()});
      rows[static_cast<std::size_t>(worker)].push_back(one);
      keys[static_cast<std::size_t>(worker)].push_back(values.back().value);
    }
    store.init(values);
    store.set_optimizer(optimizer);
    store.barrier();
    // The pulls that policies remember.
    for (std::int64_t row = 0; row < kRows; ++row)
      store.pull_rows(
          {{"table", ids_of({row}, engine), rows[static_cast<std::size_t>(worker)][static_cast<std::size_t>(row)]}});
  });
  std::mt19937 random(13);
  for (int step = 0; step < 150; ++step) {
    const auto worker = static_cast<int>(random() % kWorkers);
    KVStore& store = cluster.worker(worker);
    Engine& engine = cluster.engine(worker);
    std::set<std::int64_t> pushed, pulled;
    while (pushed.size() < 4) pushed.insert(static_cast<std::int64_t>(random() % kRows));
    while (pulled.size() < 4) pulled.insert(static_cast<std::int64_t>(random() % kRows));
    const NDArray gradients = rows_of(random_values(random, 4 * kWidth), kWidth, engine).cast(dtype);
    const NDArray out = NDArray::zeros(Shape{4, kWidth}, dtype, {}, engine);
    std::vector<PushItem> pushes;
    std::vector<PullItem> pulls;
    for (const std::int64_t row : pushed)
      pushes.push_back({key_of(row), gradients.at(static_cast<std::int64_t>(pushes.size()))});
    for (const std::int64_t row : pulled)
      pulls.push_back({key_of(row), keys[static_cast<std::size_t>(worker)][static_cast<std::size_t>(row)]});
    store.push_pull(pushes, pulls, 4);
    store.push_pull_rows({{"table", ids_of({pushed.begin(), pushed.end()}, engine), gradients}},
                         {{"table", ids_of({pulled.begin(), pulled.end()}, engine), out}}, 4);
    store.step_end();
    std::int64_t place = 0;
    for (const PullItem& item : pulls)
      ASSERT_EQ(out.at(place++).to_vector<double>(), item.out.to_vector<double>())
          << "step " << step << " " << item.key;
  }
  const StoreReport report = cluster.worker(0).report();
  ASSERT_EQ(report.row_delays.size(), report.delays.size());
  for (std::size_t worker = 0; worker < report.delays.size(); ++worker)
    EXPECT_EQ(report.row_delays[worker].text(), report.delays[worker].text());
  EXPECT_EQ(report.rows_refused, report.refused);
}

TEST(RowTables, RowsAreKeysOfTheirOwnUnderEveryPolicy) {
  const Spec adam = optim::Adam{.lr = 0.05}, sgd = optim::SGD{.lr = 0.05, .weight_decay = 0.01};
  const Spec momentum = optim::SGD{.lr = 0.05, .momentum = 0.9},
             nesterov = optim::SGD{.lr = 0.05, .momentum = 0.9, .nesterov = true};
  for (const auto& [staleness, make] : staleness_catalog().entries()) {
    if (staleness == "dana" || staleness == "predict") continue;
    SCOPED_TRACE(staleness);
    compare_with_keys(staleness, sgd, DType::kFloat32);
    compare_with_keys(staleness, adam, DType::kFloat64);
  }
  compare_with_keys("discard,discard_above=1", momentum, DType::kFloat32);
  compare_with_keys("inverse_delay+gap_aware", nesterov, DType::kFloat32);
}

TEST(RowTables, MomentumStaysWithTheRowsUnderDana) {
  std::vector<float> results[2];
  for (const int dana : {0, 1}) {
    ClusterInProcess cluster({.mode = dana ? "dist_async:staleness=dana" : "dist_async:staleness=none", .workers = 1});
    KVStore& store = cluster.worker(0);
    const TableSpec table = table_of(10, 3);
    store.init_table(table);
    store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9});
    const NDArray gradients = rows_of({1, 2, 3, 4, 5, 6}, 3, cluster.engine(0));
    for (int i = 0; i < 3; ++i) store.push_rows({{"table", ids_of({2, 7}, cluster.engine(0)), gradients}});
    results[dana] = pull(store, table, all_rows(table), cluster.engine(0));
  }
  EXPECT_EQ(results[0], results[1]);
}

// Rounds: the mean over all that contributed, in rank order; rows that a worker lacks count as zeros there.
TEST(RowTables, SynchronousRoundsEqualThoseOfADenseKey) {
  constexpr std::int64_t kRows = 40, kWidth = 3;
  constexpr int kWorkers = 3, kSteps = 8;
  ClusterInProcess cluster({.mode = "dist_sync", .workers = kWorkers, .serial = false});
  const TableSpec table = table_of(kRows, kWidth);
  std::vector<std::vector<float>> rows(kWorkers), keys(kWorkers);
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    store.init_table(table);
    const NDArray dense =
        NDArray::from<float>(pull(store, table, all_rows(table), engine), Shape{kRows, kWidth}, {}, engine);
    store.init({{"dense", dense}});
    store.set_optimizer(optim::SGD{.lr = 0.3});
    std::mt19937 random(static_cast<unsigned>(worker) + 1);
    for (int step = 0; step < kSteps; ++step) {
      const Ids ids = random_ids(random, kRows, static_cast<std::size_t>(step % 4 == 3 ? 0 : 6));
      const std::vector<float> values = random_values(random, ids.size() * kWidth);
      std::vector<float> sum(kRows * kWidth);
      for (std::size_t i = 0; i < values.size(); ++i)
        sum[static_cast<std::size_t>(ids[i / kWidth] * kWidth) + i % kWidth] += values[i];
      const NDArray out = NDArray::zeros(Shape{kRows, kWidth}, DType::kFloat32, {}, engine);
      const std::int64_t examples = 1 + (worker + step) % 3;
      store.push_pull({{"dense", NDArray::from<float>(sum, Shape{kRows, kWidth}, {}, engine)}}, {{"dense", dense}},
                      examples);
      store.push_pull_rows({{"table", ids_of(ids, engine), rows_of(values, kWidth, engine)}},
                           {{"table", ids_of(all_rows(table), engine), out}}, examples);
      if (step % 2 == 0) {
        out.wait();  // a round is over before anybody's step is
        EXPECT_EQ(out.to_vector<float>(), dense.to_vector<float>()) << "step " << step;
      }
      store.step_end();
    }
    store.barrier();
    rows[static_cast<std::size_t>(worker)] = pull(store, table, all_rows(table), engine);
    store.pull("dense", dense);
    keys[static_cast<std::size_t>(worker)] = dense.to_vector<float>();
  });
  for (std::size_t worker = 0; worker < kWorkers; ++worker) {
    EXPECT_EQ(rows[worker], keys[worker]);
    EXPECT_EQ(rows[worker], rows[0]);
  }
}

// Pulls that wait for a round are under way with many ids; the pushes that end their rounds must pass them.
TEST(RowTables, SynchronousWorkersMayUseTablesInAnyOrder) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 2, .servers = 1, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    std::vector<TableSpec> tables(2, table_of(2500000, 1, "zeros"));
    for (std::size_t i = 0; i < 2; ++i) {
      tables[i].name = str("table ", i);
      store.init_table(tables[i]);
    }
    store.set_optimizer(optim::SGD{.lr = 1});
    const NDArray all = ids_of(all_rows(tables[0]), engine);
    std::vector<NDArray> pulled;
    for (const auto i : {static_cast<std::size_t>(worker), static_cast<std::size_t>(1 - worker)}) {
      pulled.push_back(NDArray::zeros(Shape{all.size(), 1}, DType::kFloat32, {}, engine));
      store.push_pull_rows({{tables[i].name, ids_of({7}, engine), rows_of({-1}, 1, engine)}},
                           {{tables[i].name, all, pulled.back()}});
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the pull is under way
    }
    for (const NDArray& rows : pulled) EXPECT_EQ(rows.to_vector<float>()[7], 1);
    store.step_end();
  });
}

TEST(RowTables, ASecondPushInAStepOfASynchronousModeIsRefused) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 1});
  KVStore& store = cluster.worker(0);
  Engine& engine = cluster.engine(0);
  store.init_table(table_of(10, 1));
  const NDArray out = NDArray::zeros(Shape{1, 1}, DType::kFloat32, {}, engine);
  store.set_optimizer(optim::SGD{});
  store.push_rows({{"table", ids_of({1}, engine), rows_of({1}, 1, engine)}});
  store.push_rows({{"table", ids_of({2}, engine), rows_of({1}, 1, engine)}});
  store.pull_rows({{"table", ids_of({2}, engine), out}});
  EXPECT_NE(error_of_call([&] { out.wait(); }).find("twice in step 0"), std::string::npos);
}

TEST(RowTables, TheExamplesOfARefusedPushDoNotMoveTheLearningRate) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 1});
  KVStore& store = cluster.worker(0);
  Engine& engine = cluster.engine(0);
  store.init_table(table_of(10, 1, "zeros"));
  store.set_optimizer(optim::SGD{.lr = 1, .schedule = {.warmup = 9}});  // after n examples (n + 1) / 10
  const auto push = [&](std::int64_t row) {
    store.push_rows({{"table", ids_of({row}, engine), rows_of({-1}, 1, engine)}});
  };
  push(1);
  push(2);
  const NDArray refused = NDArray::zeros(Shape{1, 1}, DType::kFloat32, {}, engine);
  store.pull_rows({{"table", ids_of({2}, engine), refused}});
  EXPECT_NE(error_of_call([&] { refused.wait(); }).find("twice in step 0"), std::string::npos);
  store.step_end();
  push(3);
  store.step_end();
  const std::vector<float> rows = pull(store, table_of(10, 1, "zeros"), {1, 2, 3}, engine);
  EXPECT_EQ(rows, (std::vector<float>{0.1F, 0, 0.2F}));
}

TEST(RowTables, RowsStartAlikeOnAnyNumberOfServers) {
  std::vector<std::vector<float>> pulled;
  for (const int servers : {0, 1, 3}) {
    const TableSpec table = table_of(100000, 7, "normal:sigma=0.5,seed=11");
    const Ids ids{0, 99999, 512, 77777, 512, 1024};
    const auto engine = make_serial_engine();
    if (servers == 0) {
      StoreOptions options;
      options.engine = engine.get();
      const auto store = KVStore::create("local", options);
      store->init_table(table);
      pulled.push_back(pull(*store, table, ids, *engine));
      continue;
    }
    ClusterInProcess cluster({.workers = 1, .servers = servers});
    KVStore& store = cluster.worker(0);
    store.init_table(table);
    store.set_optimizer(optim::SGD{.lr = 1});
    pulled.push_back(pull(store, table, ids, cluster.engine(0)));
    EXPECT_EQ(store.report().rows_held, 0);  // a row that was only looked at takes no memory
    // A touched row starts from the same values.
    store.push_rows(
        {{"table", ids_of({77777}, cluster.engine(0)), rows_of(std::vector<float>(7, 0), 7, cluster.engine(0))}});
    EXPECT_EQ(pull(store, table, ids, cluster.engine(0)), pulled.back());
    EXPECT_EQ(store.report().rows_held, 1);
  }
  EXPECT_EQ(pulled[0], pulled[1]);
  EXPECT_EQ(pulled[0], pulled[2]);
  double sum = 0, squares = 0;
  const auto engine = make_serial_engine();
  StoreOptions options;
  options.engine = engine.get();
  const auto store = KVStore::create("local", options);
  const TableSpec table = table_of(2000, 25, "normal:sigma=0.5,seed=11");
  store->init_table(table);
  for (const float value : pull(*store, table, all_rows(table), *engine)) {
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 50000, 0, 0.01);
  EXPECT_NEAR(squares / 50000, 0.25, 0.01);
}

// More rows than fit a message, in both directions, repeated ids on both sides; pulls see the pushes of the same call.
TEST(RowTables, LargeCallsOfSeveralTablesReadTheirWrites) {
  for (const char* mode : {"dist_async:staleness=none", "dist_async:staleness=none,bound=1", "dist_sync"}) {
    SCOPED_TRACE(mode);
    constexpr std::int64_t kWidth = 96;
    ClusterInProcess cluster({.mode = mode, .workers = 1, .servers = 2, .transport = "tcp", .serial = false});
    KVStore& store = cluster.worker(0);
    Engine& engine = cluster.engine(0);
    const TableSpec table = table_of(100000, kWidth, "zeros");
    TableSpec second = table_of(50, 2, "uniform:bound=2");
    second.name = "second";
    store.init_table(table);
    store.init_table(second);
    store.set_optimizer(optim::SGD{.lr = 1});
    std::mt19937 random(17);
    const Ids pushed = random_ids(random, table.rows, 60000), asked = random_ids(random, table.rows, 50000);
    std::map<std::int64_t, float> counts;
    for (const std::int64_t id : pushed) counts[id] += 1;
    const NDArray out = NDArray::zeros(Shape{50000, kWidth}, DType::kFloat32, {}, engine);
    const NDArray minus = NDArray::full(Shape{60000, kWidth}, -1, DType::kFloat32, {}, engine);
    const NDArray small = NDArray::zeros(Shape{1, 2}, DType::kFloat32, {}, engine);
    store.push_pull_rows({{"table", ids_of(pushed, engine), minus}},
                         {{"second", ids_of({49}, engine), small}, {"table", ids_of(asked, engine), out}});
    store.step_end();
    std::vector<float> expected;
    for (const std::int64_t id : asked) expected.insert(expected.end(), kWidth, counts.count(id) ? counts[id] : 0);
    EXPECT_EQ(out.to_vector<float>(), expected);
    EXPECT_NE(small.to_vector<float>()[0], 0);
    // Ids that are pushed and pulled alike travel once.
    const NDArray back = NDArray::zeros(Shape{60000, kWidth}, DType::kFloat32, {}, engine);
    store.push_pull_rows({{"table", ids_of(pushed, engine), minus}}, {{"table", ids_of(pushed, engine), back}});
    store.step_end();
    expected.clear();
    for (const std::int64_t id : pushed) expected.insert(expected.end(), kWidth, 2 * counts[id]);
    EXPECT_EQ(back.to_vector<float>(), expected);
    EXPECT_EQ(store.report().rows_held, static_cast<std::int64_t>(counts.size()));
  }
}

TEST(RowTables, StateOfAPolicyThatIsNotUsedIsDropped) {
  const auto engine = make_threaded_engine();
  const TableSpec table = table_of(5, 2);
  StoreState state;
  std::vector<float> expected;
  const auto begin = [&](KVStore& store) {
    store.init_table(table);
    store.set_optimizer(optim::SGD{.lr = 0.5});
  };
  const auto in_job = [&](const char* mode, const std::function<void(KVStore&)>& work) {
    ClusterInProcess cluster({.mode = mode, .workers = 1, .servers = 1, .engine = engine.get()});
    begin(cluster.worker(0));
    work(cluster.worker(0));
  };
  in_job("dist_async", [&](KVStore& store) {
    store.push_rows({{table.name, ids_of({1, 3}, *engine), rows_of({1, 2, 3, 4}, 2, *engine)}});
    state = store.save();
    expected = pull(store, table, all_rows(table), *engine);
  });
  EXPECT_TRUE(std::ranges::any_of(
      state.arrays, [](const auto& array) { return array.first == "table:table:gap_aware_mean_square"; }));
  const auto load = [&](KVStore& store) {
    store.load(state);
    EXPECT_EQ(pull(store, table, all_rows(table), *engine), expected);
  };
  in_job("dist_sync", load);
  StoreOptions options;
  options.engine = engine.get();
  const auto local = KVStore::create("local", options);
  begin(*local);
  load(*local);
}

// A message holds some of its rows, and the next message begins where it ended.
TEST(RowTables, AStateOfManyMessagesHasEveryRow) {
  const TableSpec table = table_of(12, 1 << 18, "zeros");  // a MiB for each row
  const Ids ids = all_rows(table);
  ClusterInProcess cluster({.workers = 1, .servers = 1});
  cluster.run([&](int, KVStore& store) {
    Engine& engine = cluster.engine(0);
    store.init_table(table);
    store.set_optimizer(optim::SGD{.lr = 1});
    store.push_rows({{"table", ids_of(ids, engine),
                      NDArray::full(Shape{table.rows, table.width}, -1, DType::kFloat32, {}, engine)}});
    store.step_end();
    const StoreState state = store.save();
    for (const auto& [name, array] : state.arrays) EXPECT_EQ(array.shape()[0], table.rows) << name;
    store.push_rows({{"table", ids_of(ids, engine),
                      NDArray::full(Shape{table.rows, table.width}, 5, DType::kFloat32, {}, engine)}});
    store.step_end();
    store.load(state);
    EXPECT_THAT(pull(store, table, ids, engine), testing::Each(1));
  });
}

// Also those that name no row of a partition.
TEST(RowTables, SchedulesCountAllPushesToTheTable) {
  const TableSpec table = table_of(100000, 1, "zeros");
  constexpr std::int64_t kOften = 1, kRare = 99999;  // in different partitions
  ClusterInProcess cluster({.workers = 1});
  KVStore& store = cluster.worker(0);
  Engine& engine = cluster.engine(0);
  store.init_table(table);
  store.set_optimizer(optim::SGD{.lr = 1, .schedule = {.form = "step", .every = 4, .factor = 0}});
  const auto push = [&](std::int64_t row, int times) {
    for (int i = 0; i < times; ++i) {
      store.push_rows({{table.name, ids_of({row}, engine), rows_of({-1}, 1, engine)}}, 1);
      store.step_end();
    }
    return pull(store, table, {row}, engine)[0];
  };
  const StoreState first = store.save();
  EXPECT_EQ(push(kOften, 3), 3);
  EXPECT_EQ(push(kRare, 2), 1);
  EXPECT_EQ(push(kOften, 1), 3);
  store.load(first);  // with no examples
  EXPECT_EQ(push(kRare, 5), 4);
  store.load(first);
  push(kOften, 3);
  store.load(first);
  EXPECT_EQ(push(kRare, 5), 4);
}

TEST(RowTables, SayWhatIsWrong) {
  ClusterInProcess cluster({.workers = 2});
  Engine& engine = cluster.engine(0);
  KVStore& store = cluster.worker(0);
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
  };
  const TableSpec table = table_of(10, 2);
  has(error_of_call([&] {
        store.push_rows({{"table", ids_of({0}, engine), rows_of({1, 2}, 2, engine)}});
      }),
      "call set_optimizer() first");
  store.set_optimizer(optim::SGD{});
  has(error_of_call([&] { store.init_table(table_of(0, 2)); }), "0 rows");
  has(error_of_call([&] { store.init_table(table_of(3, 2, "ones")); }), "known: zeros normal uniform");
  has(error_of_call([&] { store.init_table(table_of(3, 2, "normal:mean=1")); }), "sigma");
  has(error_of_call([&] { store.init_table(table_of(3, 2, "zeros", DType::kInt64)); }), "float32 and float64");
  has(error_of_call([&] {
        store.push_rows({{"table", ids_of({0}, engine), rows_of({1, 2}, 2, engine)}});
      }),
      "was not initialised");
  store.init_table(table);
  store.init_table(table);
  has(error_of_call([&] { cluster.worker(1).init_table(table_of(11, 2)); }), "(11, 2)");
  const NDArray one = rows_of({1, 2}, 2, engine);
  has(error_of_call([&] { store.push_rows({{"table", one, one}}); }), "expected int64");
  has(error_of_call([&] { store.push_rows({{"table", ids_of({1, 2}, engine), one}}); }), "(2, 2)");
  has(error_of_call([&] {
        store.push_rows({{"table", ids_of({1}, engine), one}, {"table", ids_of({1}, engine), one}});
      }),
      "twice in one call");
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{10}, std::int64_t{1} << 62}) {
    const NDArray out = NDArray::zeros(Shape{1, 2}, DType::kFloat32, {}, engine);
    store.pull_rows({{"table", ids_of({id}, engine), out}});
    has(error_of_call([&] { out.wait(); }), "names row " + std::to_string(id) + " at position 0");
    store.push_rows({{"table", ids_of({4, id}, engine), rows_of({1, 2, 3, 4}, 2, engine)}});
    store.pull_rows({{"table", ids_of({4}, engine), out}});
    has(error_of_call([&] { out.wait(); }), "names row " + std::to_string(id) + " at position 1");
    store.push_rows({{"table", ids_of({4}, engine), one}});  // a push that succeeds makes it good
    pull(store, table, {4}, engine);
  }
}

// Words of two kinds that occur together: an embedding trained with push_rows alone tells them apart.
TEST(RowTables, TrainAnEmbedding) {
  ClusterInProcess cluster({.mode = "dist_async", .workers = 2, .serial = false});
  constexpr std::int64_t kWords = 2000, kWidth = 8;
  const TableSpec table = table_of(kWords, kWidth, "normal:sigma=0.3,seed=1");
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    store.init_table(table);
    store.set_optimizer(optim::Adam{.lr = 0.2});
    std::mt19937 random(static_cast<unsigned>(worker) + 5);
    for (int step = 0; step < 200; ++step) {
      // Pairs of words, half of them of the same parity: those are to have a positive product.
      constexpr std::size_t kPairs = 128;
      const Ids words = random_ids(random, kWords, 2 * kPairs);
      const std::vector<float> rows = pull(store, table, words, engine);
      std::vector<float> gradients(rows.size());
      for (std::size_t p = 0; p < kPairs; ++p) {
        const float* a = &rows[2 * p * kWidth];
        const float* b = a + kWidth;
        float product = 0;
        for (int e = 0; e < kWidth; ++e) product += a[e] * b[e];
        const float target = (words[2 * p] + words[2 * p + 1]) % 2 == 0 ? 1 : 0;
        const float slope = 1 / (1 + std::exp(-product)) - target;
        for (std::size_t e = 0; e < kWidth; ++e) {
          gradients[2 * p * kWidth + e] = slope * b[e];
          gradients[(2 * p + 1) * kWidth + e] = slope * a[e];
        }
      }
      store.push_rows({{"table", ids_of(words, engine), rows_of(gradients, kWidth, engine)}}, kPairs);
      store.step_end();
    }
    store.barrier();
    if (worker != 0) return;
    const std::vector<float> rows = pull(store, table, all_rows(table), engine);
    int right = 0;
    for (int i = 0; i < 1000; ++i) {
      const std::size_t a = random() % kWords, b = random() % kWords;
      float product = 0;
      for (std::size_t e = 0; e < kWidth; ++e) product += rows[a * kWidth + e] * rows[b * kWidth + e];
      right += (product > 0) == ((a + b) % 2 == 0);
    }
    EXPECT_GT(right, 900);
  });
}

// Over shm servers read gradients where they lie, save those that no peer can see.
TEST(RowTables, GradientsInPlaceUpdateLikeThoseThatTravel) {
  constexpr unsigned kSeed = 17;
  SCOPED_TRACE(kSeed);
  constexpr std::int64_t kRows = 3000, kWidth = 24;
  constexpr std::size_t kPushed = 2000;
  std::vector<std::vector<float>> results;
  // First the heap, then arrays: the pool would give those again that are not in it.
  const std::pair<const char*, bool> cases[] = {{"shm", false}, {"shm", true}, {"inproc", false}};
  for (const auto& [transport, foreign] : cases) {
    ClusterInProcess cluster({.workers = 1, .transport = transport, .serial = false});
    KVStore& store = cluster.worker(0);
    Engine& engine = cluster.engine(0);
    const TableSpec table = table_of(kRows, kWidth);
    store.init_table(table);
    store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9});
    std::mt19937 random(kSeed);
    NDArray out = NDArray::zeros(Shape{kPushed, kWidth}, DType::kFloat32, {}, engine);
    for (int step = 0; step < 10; ++step) {
      const NDArray ids = ids_of(random_ids(random, kRows, kPushed), engine);  // many more than once
      NDArray gradients = rows_of(random_values(random, kPushed * kWidth), kWidth, engine);
      if (foreign) {
        const auto memory = std::make_shared<std::vector<float>>(gradients.to_vector<float>());
        gradients = ArrayBuilder::wrap(memory->data(), gradients.shape(), DType::kFloat32, {}, memory, engine);
      }
      store.push_pull_rows({{"table", ids, gradients}}, {{"table", ids, out}});
      gradients.fill(1e9);  // it is the worker's own again
    }
    results.push_back(pull(store, table, all_rows(table), engine));
    const std::vector<float> last = out.to_vector<float>();
    results.back().insert(results.back().end(), last.begin(), last.end());
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

}  // namespace
}  // namespace paceline::test
