// Tables that begin with values of the user's own.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "row_support.h"

namespace paceline::test {
namespace {

const std::vector<std::string> kModes{"local", "dist_sync", "dist_async:staleness=none", "dist_async:staleness=dana"};

// Element e of row r, the same wherever it is computed, and no number that rounding would spare.
float value_of(std::int64_t row, std::int64_t element, int worker = 0) {
  return static_cast<float>(worker) + 1.0f / static_cast<float>(3 + row * 7 + element);
}

std::vector<float> values_of(const TableSpec& table, int worker = 0) {
  std::vector<float> values;
  for (std::int64_t row = 0; row < table.rows; ++row)
    for (std::int64_t element = 0; element < table.width; ++element) values.push_back(value_of(row, element, worker));
  return values;
}

// A function that writes them, and counts how often each row was asked for.
FirstRows writer_of(const TableSpec& table, int worker, std::map<std::int64_t, int>* asked = nullptr) {
  return [=](std::int64_t begin, std::int64_t end, const NDArray& out) {
    EXPECT_LT(begin, end);
    EXPECT_EQ(out.shape(), (Shape{end - begin, table.width}));
    EXPECT_EQ(out.dtype(), DType::kFloat32);
    std::vector<float> rows;
    for (std::int64_t row = begin; row < end; ++row) {
      if (asked) ++(*asked)[row];
      for (std::int64_t element = 0; element < table.width; ++element) rows.push_back(value_of(row, element, worker));
    }
    out.copy_from(rows_of(rows, table.width, out.engine()));
  };
}

// One worker alone in a job of the mode.
void in_a_job(const std::string& mode, const std::function<void(KVStore&, Engine&)>& work, int servers = 2) {
  Engine& engine = default_engine();  // a state outlives its job
  if (mode == "local") return work(*KVStore::create(mode), engine);
  ClusterInProcess cluster({.mode = mode, .workers = 1, .servers = servers, .engine = &engine});
  cluster.run([&](int, KVStore& store) { work(store, engine); });
}

// Bit for bit, from an array and from a function that is asked for each row once; tables of one and of many blocks.
TEST(FirstRows, AreWhatTheArrayOrTheFunctionSays) {
  for (const std::string& mode : kModes) {
    for (const auto& size : {std::pair(1, 1), std::pair(5, 3), std::pair(5000, 7), std::pair(40, 40000)}) {
      const int rows = size.first, width = size.second;
      SCOPED_TRACE(str(mode, " ", rows, " x ", width));
      in_a_job(mode, [&](KVStore& store, Engine& engine) {
        TableSpec table = table_of(rows, width);
        const std::vector<float> expected = values_of(table);
        store.init_table(table, rows_of(expected, width, engine));
        EXPECT_EQ(pull(store, table, all_rows(table), engine), expected);
        EXPECT_EQ(store.report().rows_held, rows);
        table.name = "function";
        std::map<std::int64_t, int> asked;
        store.init_table(table, writer_of(table, 0, &asked));
        EXPECT_EQ(pull(store, table, all_rows(table), engine), expected);
        EXPECT_EQ(asked.size(), static_cast<std::size_t>(rows));
        EXPECT_TRUE(std::ranges::all_of(asked, [](const auto& row) { return row.second == 1; }));
      });
    }
  }
}

// The same training as of a dense key that begins with the values: rows have no history before their first update.
TEST(FirstRows, TrainAsADenseKeyThatBeginsWithThem) {
  for (const std::string mode : {"local", "dist_sync", "dist_async:staleness=none"}) {
    for (const Spec& optimizer : {Spec(optim::SGD{.lr = 0.3, .momentum = 0.9}), Spec(optim::Adam{.lr = 0.1})}) {
      SCOPED_TRACE(mode + " " + optimizer.text());
      in_a_job(mode, [&](KVStore& store, Engine& engine) {
        const TableSpec table = table_of(60, 4);
        const NDArray dense = rows_of(values_of(table), table.width, engine);
        store.init({{"dense", dense}});
        store.init_table(table, rows_of(values_of(table), table.width, engine));
        store.set_optimizer(optimizer);
        std::mt19937 random(5);
        for (int step = 0; step < 5; ++step) {
          const NDArray gradient = rows_of(random_values(random, 60 * 4), table.width, engine);
          store.push_pull({{"dense", gradient}}, {{"dense", dense}});
          store.push_rows({{"table", ids_of(all_rows(table), engine), gradient}});
          store.step_end();
        }
        EXPECT_EQ(pull(store, table, all_rows(table), engine), dense.to_vector<float>());
      });
    }
  }
}

// Neither keys nor other tables notice.
TEST(FirstRows, LeaveTheRestOfTheStoreAsItIs) {
  for (const std::string& mode : kModes) {
    SCOPED_TRACE(mode);
    std::vector<float> found[2];
    for (const bool fills : {false, true}) {
      in_a_job(mode, [&](KVStore& store, Engine& engine) {
        const TableSpec other = table_of(100, 2);
        const NDArray key = NDArray::full(Shape{5}, 1, DType::kFloat32, {}, engine), one = key.clone();
        store.set_optimizer(optim::SGD{.lr = 0.5, .momentum = 0.5});
        store.init({{"key", key}});
        store.init_table(other);
        for (int step = 0; step < 3; ++step) {
          store.push_rows({{"table", ids_of({5}, engine), rows_of({1, 1}, 2, engine)}});
          store.push_pull({{"key", one}}, {{"key", key}});
          store.step_end();
          if (step == 0 && fills) {
            TableSpec table = table_of(30, 3);
            table.name = "filled";
            store.init_table(table, writer_of(table, 0));
          }
        }
        found[fills ? 1 : 0] = key.to_vector<float>();
        const std::vector<float> rows = pull(store, other, all_rows(other), engine);
        found[fills ? 1 : 0].insert(found[fills ? 1 : 0].end(), rows.begin(), rows.end());
        EXPECT_EQ(store.report().rows_held, fills ? 31 : 1);
        EXPECT_EQ(store.report().loads, 0);
      });
    }
    EXPECT_EQ(found[0], found[1]);
  }
}

// All rows are in a checkpoint, those that were never updated, too, and come back bit for bit on other servers.
TEST(FirstRows, AreInACheckpoint) {
  const TableSpec table = table_of(3000, 5);
  std::vector<float> trained;
  StoreState state;
  in_a_job("dist_sync", [&](KVStore& store, Engine& engine) {
    store.set_optimizer(optim::Adam{.lr = 0.1});
    store.init_table(table, writer_of(table, 0));
    store.push_rows({{"table", ids_of({7, 2999}, engine), rows_of(std::vector<float>(10, 1), 5, engine)}});
    store.step_end();
    trained = pull(store, table, all_rows(table), engine);
    state = store.save();
  });
  EXPECT_EQ(std::ranges::mismatch(trained, values_of(table)).in1 - trained.begin(), 7 * 5);  // the first updated row
  for (const std::string mode : {"local", "dist_async"}) {
    in_a_job(
        mode,
        [&](KVStore& store, Engine& engine) {
          store.set_optimizer(optim::Adam{.lr = 0.1});
          store.init_table(table);
          store.load(state);
          EXPECT_EQ(pull(store, table, all_rows(table), engine), trained);
          EXPECT_EQ(store.report().rows_held, 3000);
        },
        3);
  }
}

TEST(FirstRows, OfRankZeroCount) {
  for (const std::string mode : {"dist_sync", "dist_async"}) {
    for (const bool loses_messages : {false, true}) {
      SCOPED_TRACE(str(mode, loses_messages ? " over a bad network" : ""));
      ClusterInProcess cluster({.mode = mode, .workers = 3, .faulty = loses_messages, .serial = false});
      cluster.run([&](int worker, KVStore& store) {
        const TableSpec table = table_of(500, 2);
        store.init_table(table, writer_of(table, worker));
        EXPECT_EQ(pull(store, table, all_rows(table), cluster.engine(worker)), values_of(table, 0));
      });
    }
  }
}

// The worker that sends dies after a part: the next one's values count, all of them. One that returns gets the rows
// that the job has.
TEST(FirstRows, OutliveTheWorkerThatSends) {
  struct Dies {};
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 3, .serial = false});
  const TableSpec table = table_of(5000, 3);
  cluster.run([&](int worker, KVStore& store) {
    if (worker > 0) {
      store.init_table(table, writer_of(table, worker));
      store.set_optimizer(optim::SGD{.lr = 1});
      EXPECT_EQ(pull(store, table, all_rows(table), cluster.engine(worker)), values_of(table, 1)) << worker;
      return;
    }
    int blocks = 0;  // of 40
    EXPECT_THROW(store.init_table(table,
                                  [&](std::int64_t first, std::int64_t last, const NDArray& out) {
                                    if (++blocks == 30) throw Dies();
                                    writer_of(table, 0)(first, last, out);
                                  }),
                 Dies);
    cluster.kill_worker(0);
  });
  cluster.join_worker(0);
  cluster.run([&](int worker, KVStore& store) {
    if (worker > 0) return;
    store.init_table(table, [](std::int64_t, std::int64_t, const NDArray&) { ADD_FAILURE() << "the job has them"; });
    store.set_optimizer(optim::SGD{.lr = 1});
  });
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    if (worker > 0) {
      store.push_rows({{"table", ids_of({4}, engine), rows_of({1, 1, 1}, 3, engine)}});
      store.step_end();
    }
    store.barrier();
    std::vector<float> expected = values_of(table, 1);
    for (std::size_t element = 0; element < 3; ++element) expected[4 * 3 + element] -= 1;
    EXPECT_EQ(pull(store, table, all_rows(table), engine), expected);
  });
}

// A worker that returns while another sends them waits for them, and the barriers of both go on together.
TEST(FirstRows, AreAwaitedByAWorkerThatReturnsMeanwhile) {
  using namespace std::chrono_literals;
  const TableSpec table = table_of(5000, 3);
  for (const bool async : {false, true}) {
    ClusterInProcess cluster({.mode = async ? "dist_async:staleness=none" : "dist_sync", .serial = false});
    std::atomic<bool> sending = false, returned = false, sent = false;
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      store.barrier();
      if (worker == 0) {
        store.init_table(table, [&](std::int64_t first, std::int64_t last, const NDArray& out) {
          sending = true;
          while (!returned) std::this_thread::sleep_for(1ms);
          if (last == table.rows) {
            std::this_thread::sleep_for(100ms);
            sent = true;
          }
          writer_of(table, 0)(first, last, out);
        });
      } else {
        while (!sending) std::this_thread::sleep_for(1ms);
        cluster.kill_worker(1);
        cluster.join_worker(1);
        returned = true;
        const auto fails = [](std::int64_t, std::int64_t, const NDArray&) { ADD_FAILURE() << "another sends them"; };
        cluster.worker(1).init_table(table, fails);
        EXPECT_TRUE(sent);
      }
      KVStore& mine = cluster.worker(worker);
      mine.set_optimizer(optim::SGD{.lr = 1});
      EXPECT_EQ(pull(mine, table, all_rows(table), engine), values_of(table, 0)) << worker;
      mine.barrier();
      for (int step = 0; step < 3; ++step) {
        mine.push_rows({{"table", ids_of({4}, engine), rows_of({1, 1, 1}, 3, engine)}});
        mine.step_end();
      }
      mine.barrier();
      std::vector<float> expected = values_of(table, 0);
      for (std::size_t element = 0; element < 3; ++element)
        for (int step = 0; step < (async ? 6 : 3); ++step) expected[4 * 3 + element] -= 1;
      EXPECT_EQ(pull(mine, table, all_rows(table), engine), expected) << worker;
    });
  }
}

TEST(FirstRows, ThatDoNotFitAreRefusedByAllWorkers) {
  ClusterInProcess cluster({.mode = "dist_sync", .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const TableSpec table = table_of(500, 2);
    for (const NDArray& wrong : {NDArray::zeros(Shape{500, 3}, DType::kFloat32, {}, engine),
                                 NDArray::zeros(Shape{500, 2}, DType::kFloat64, {}, engine), NDArray()})
      EXPECT_NE(error_of_call([&] { store.init_table(table, wrong); }).find("the first values of table 'table' are"),
                std::string::npos);
    const auto refuses = [](std::int64_t, std::int64_t, const NDArray&) { throw InvalidArgument("no such file"); };
    EXPECT_EQ(error_of_call([&] { store.init_table(table, refuses); }), "no such file") << worker;
    store.init_table(table, writer_of(table, worker));  // the job goes on
    EXPECT_EQ(pull(store, table, all_rows(table), engine), values_of(table, 0));
  });
  const auto local = KVStore::create("local");
  EXPECT_NE(error_of_call([&] { local->backend().fill_table("none", nullptr); }).find("was not initialised"),
            std::string::npos);
}

// A server holds its rows once, also of a table that takes many messages.
TEST(FirstRows, AreHeldOnce) {
  constexpr std::int64_t kRows = 200000, kWidth = 32;
  in_a_job("dist_sync", [&](KVStore& store, Engine& engine) {
    const TableSpec table = table_of(kRows, kWidth, "zeros");
    std::atomic<std::int64_t> most = 0;
    store.init_table(table, [&](std::int64_t begin, std::int64_t end, const NDArray& out) {
      most = std::max<std::int64_t>(most, end - begin);
      out.fill(static_cast<double>(begin));
    });
    EXPECT_LE(most, 4096);
    const StoreReport report = store.report();
    EXPECT_EQ(report.rows_held, kRows);
    EXPECT_LT(static_cast<double>(report.row_bytes), 1.3 * kRows * (kWidth * 4 + 8));
    const std::vector<float> last = pull(store, table, {kRows - 1}, engine);
    EXPECT_EQ(last.front(), last.back());
    EXPECT_GE(last.front(), static_cast<float>(kRows - most));
  });
}

}  // namespace
}  // namespace paceline::test
