// Row-sparse tables over bad networks, after the loss of a worker, and from checkpoints.
#include <gtest/gtest.h>
#include <paceline/updater.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "hand_made_worker.h"
#include "row_support.h"
#include "rows/table_layout.h"
#include "sparse.pb.h"

namespace paceline::test {
namespace {

// Counters are exact whatever the network loses, repeats and reorders.
TEST(RowFaults, EveryPushIsAppliedExactlyOnceOverABadNetwork) {
  constexpr int kWorkers = 2, kPushes = 6;
  for (const char* mode : {"dist_async:staleness=gap_aware", "dist_async:staleness=none,bound=2", "dist_sync"}) {
    for (const char* transport : {"inproc", "tcp", "shm"}) {
      if (std::string(transport) != "inproc" && std::string(mode) == "dist_sync") continue;
      SCOPED_TRACE(std::string(transport) + " " + mode);
      ClusterInProcess cluster(
          {.mode = mode, .workers = kWorkers, .transport = transport, .faulty = true, .serial = false});
      const TableSpec table = table_of(5000, 40, "zeros");
      // gap_aware would divide late gradients; where every one is zero it has nothing to do.
      const bool counts = std::string(mode).find("gap_aware") == std::string::npos;
      cluster.run([&](int worker, KVStore& store) {
        Engine& engine = cluster.engine(worker);
        store.init_table(table);
        store.set_optimizer(optim::SGD{.lr = 1});
        Ids ids(1500);
        for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i * 3 + 1);
        const NDArray rows = ids_of(ids, engine), out = NDArray::zeros(Shape{1500, 40}, DType::kFloat32, {}, engine);
        const NDArray minus = NDArray::full(Shape{1500, 40}, counts ? -1 : 0, DType::kFloat32, {}, engine);
        for (int i = 0; i < kPushes; ++i) {
          if (i % 2 == 0) {
            store.push_pull_rows({{"table", rows, minus}}, {{"table", rows, out}});
          } else {
            store.push_rows({{"table", rows, minus}});
            store.pull_rows({{"table", rows, out}});
          }
          store.step_end();
        }
        out.wait();
        store.barrier();
        store.pull_rows({{"table", rows, out}});
        // In a round the mean counts, which is one push.
        const bool synchronous = std::string(mode) == "dist_sync";
        const float expected = counts ? static_cast<float>(kPushes * (synchronous ? 1 : kWorkers)) : 0;
        EXPECT_EQ(out.to_vector<float>(), std::vector<float>(1500 * 40, expected));
        const StoreReport report = store.report();
        ASSERT_EQ(report.row_delays.size(), static_cast<std::size_t>(kWorkers));
        for (const Histogram& delays : report.row_delays) EXPECT_EQ(delays.count(), 1500 * kPushes);
        EXPECT_EQ(report.rows_held, 1500);
        store.barrier();
      });
    }
  }
}

// Three workers take a step, and the two that are left take five. Each step adds 1 to a row of the worker's own and
// to two that all share, which begin as 0. Nothing that was pushed before the loss may be missing, and nothing
// may wait for the lost worker.
TEST(RowFaults, TheJobGoesOnWhenAWorkerIsLost) {
  // Over shm the servers read rows as long as these in the workers' memory.
  constexpr std::int64_t kWidth = 4096;
  struct Case {
    const char* mode;
    const char* transport;
    double own, lost;  // rows in the end
    double shared_before;
    double shared_least, shared_most;
  };
  const Case cases[] = {
      // A row of one's own is never late, nor one that its worker has not pulled. Of the ten pushes to a shared row
      // that follow the loss each counts 1 / (1 + g), where g is what the other worker has added since this one pulled.
      // Both
      // begin with 3: the first push counts 1, the other worker's first at most 1 / 2. The sum is least where the two
      // take turns, and each push behind the first counts at least 1 / 2.
      {"dist_async:staleness=gap_aware", "inproc", 6, 1, 3, 3 + 5.5, 3 + 9.5},
      // Every push counts in full.
      {"dist_async:staleness=none,bound=0", "shm", 6, 1, 3, 13, 13},
      // A round counts the mean: a third of each of three pushes, then half of each of two.
      {"dist_sync", "inproc", 1.0 / 3 + 5.0 / 2, 1.0 / 3, 1, 6, 6}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.mode);
    ClusterInProcess cluster({.mode = one.mode, .workers = 3, .transport = one.transport, .serial = false});
    const TableSpec table = table_of(1000, kWidth, "zeros");
    const auto step = [&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray ids = ids_of({worker, 500, 999}, engine),
                    out = NDArray::zeros(Shape{3, kWidth}, DType::kFloat32, {}, engine);
      store.push_pull_rows({{"table", ids, NDArray::full(Shape{3, kWidth}, -1, DType::kFloat32, {}, engine)}},
                           {{"table", ids, out}});
      store.step_end();
      out.wait();
    };
    // Of each row the smallest and the largest number.
    const auto expect_rows = [&](int worker, KVStore& store, const Ids& ids, double least, double most) {
      const std::vector<float> rows = pull(store, table, ids, cluster.engine(worker));
      const auto [smallest, largest] = std::minmax_element(rows.begin(), rows.end());
      EXPECT_GE(*smallest, least - 1e-4) << "in row "
                                         << ids.at(static_cast<std::size_t>((smallest - rows.begin()) / kWidth));
      EXPECT_LE(*largest, most + 1e-4) << "in row "
                                       << ids.at(static_cast<std::size_t>((largest - rows.begin()) / kWidth));
    };
    cluster.run([&](int worker, KVStore& store) {
      store.init_table(table);
      store.set_optimizer(optim::SGD{.lr = 1});
      store.barrier();
      step(worker, store);
      store.barrier();
      expect_rows(worker, store, {500, 999}, one.shared_before, one.shared_before);
    });
    cluster.kill_worker(1);
    std::atomic<int> done = 0;
    cluster.run([&](int worker, KVStore& store) {
      for (int i = 0; i < 5; ++i) step(worker, store);
      store.barrier();
      expect_rows(worker, store, {0, 2}, one.own, one.own);
      expect_rows(worker, store, {1}, one.lost, one.lost);
      expect_rows(worker, store, {500, 999}, one.shared_least, one.shared_most);
      ++done;
    });
    EXPECT_EQ(done, 2);
  }
}

// A worker is lost between two pieces of a push, in a round in which nobody else pushes. The round must close.
TEST(RowFaults, ARoundOfHalfAPushCloses) {
  ClusterConfig job = job_config("inproc", 1, 2);
  const EndedFile ended(&job);
  SchedulerThread scheduler(job);
  Server server(member(job, Role::kServer, 0), {}, 1);
  std::thread serving([&] { server.run(); });
  Node first(member(job, Role::kWorker, 0, 0), Node::Handlers{}), second(member(job, Role::kWorker, 0, 1), {});
  std::thread joining([&] { second.join(); });
  first.join();
  joining.join();
  const TableSpec table = table_of(8, 2, "zeros");
  wire::DeclareTable declare;
  write_table(table, &declare);
  declare.set_mode("dist_sync");
  declare.mutable_placement()->set_group(hash_key("table"));
  for (int p = 0; p < TableLayout::partitions_for(table, 1); ++p) declare.mutable_placement()->add_servers(0);
  for (Node* const node : {&first, &second}) ask(*node, MessageKind::kDeclareTable, declare.SerializeAsString());

  // Worker 1 sends the first of two pieces: row 3, version 0, and a gradient.
  Message push;
  push.header.kind = MessageKind::kPushPullRows;
  wire::PushPullRowsRequest rows;
  rows.set_examples(1);
  rows.set_call(1);
  wire::RowPart* const part = rows.add_parts();
  part->set_table(hash_key("table"));
  part->set_sequence(1);
  part->set_pushed(1);
  part->set_pieces(2);
  push.body = rows.SerializeAsString();
  const std::array<std::int64_t, 3> payload = {3, 0, 0};
  push.payload = {Frame::of(std::string(reinterpret_cast<const char*>(payload.data()), sizeof payload))};
  second.ask({Role::kServer, 0}, push, [](const std::optional<Message>&, const std::exception_ptr&) {});
  ask(second, MessageKind::kReport, "");  // answered when the push has arrived
  ended.add_killed(1);

  // Worker 0 has ended the step without a push to the table, and pulls the weights of the next one.
  wire::StepEnd step;
  step.set_clock(1);
  ask(first, MessageKind::kStepEnd, step.SerializeAsString());
  part->clear_sequence();
  part->clear_pushed();
  part->clear_pieces();
  part->set_pulled(1);
  part->set_need(1);
  push.body = rows.SerializeAsString();
  push.payload = {Frame::of(std::string(reinterpret_cast<const char*>(payload.data()), 8))};
  std::promise<std::string> pulled;
  first.ask({Role::kServer, 0}, push, [&](const std::optional<Message>& answer, const std::exception_ptr&) {
    pulled.set_value(answer ? "answered" : "failed");
  });
  std::future<std::string> answer = pulled.get_future();
  EXPECT_EQ(answer.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  first.leave();
  serving.join();
  scheduler.result();
  second.close();
  first.close();
  EXPECT_EQ(answer.get(), "answered");
}

// Tables of a checkpoint: touched rows with their state and versions, into another number of servers.
TEST(RowFaults, GoOnFromACheckpointOnOtherServers) {
  const TableSpec table = table_of(3000, 6);
  const Spec optimizer = optim::Adam{.lr = 0.1};
  // What each step pushes is the same everywhere.
  const auto train = [&](KVStore& store, Engine& engine, int from, int to) {
    for (int step = from; step < to; ++step) {
      std::mt19937 random(static_cast<unsigned>(step));
      const Ids ids = random_ids(random, table.rows, 200);
      store.push_rows({{"table", ids_of(ids, engine), rows_of(random_values(random, 200 * 6), 6, engine)}});
      store.step_end();
    }
  };
  const auto set_up = [&](KVStore& store) {
    store.init_table(table);
    store.set_optimizer(optimizer);
  };
  const auto engine = make_serial_engine();
  StoreOptions options;
  options.engine = engine.get();
  const auto whole = KVStore::create("local", options);
  set_up(*whole);
  train(*whole, *engine, 0, 20);
  const std::vector<float> expected = pull(*whole, table, all_rows(table), *engine);

  StoreState state;
  std::int64_t held = 0;
  {
    ClusterInProcess cluster({.workers = 2, .servers = 2, .engine = engine.get()});
    cluster.run([&](int, KVStore& store) { set_up(store); });
    train(cluster.worker(0), *engine, 0, 10);
    held = cluster.worker(0).report().rows_held;
    std::array<StoreState, 2> states;
    cluster.run([&](int worker, KVStore& store) { states[static_cast<std::size_t>(worker)] = store.save(); });
    state = states[0];
    EXPECT_TRUE(states[1].arrays.empty());
  }
  for (const auto& [name, array] : state.arrays) EXPECT_EQ(array.shape()[0], held) << name;
  EXPECT_EQ(state.arrays.size(), 5U);  // ids, versions, weight, mean, variance
  {
    ClusterInProcess cluster({.workers = 2, .servers = 3, .engine = engine.get()});
    cluster.run([&](int, KVStore& store) {
      set_up(store);
      store.push_rows({{"table", ids_of({1, 2, 3}, *engine), rows_of(std::vector<float>(18, 1), 6, *engine)}});
      store.load(state);
    });
    EXPECT_EQ(cluster.worker(1).report().rows_held, held);  // what was pushed before the load is gone
    train(cluster.worker(1), *engine, 10, 20);
    EXPECT_EQ(pull(cluster.worker(0), table, all_rows(table), *engine), expected);
  }
  const auto local = KVStore::create("local", options);
  set_up(*local);
  local->load(state);
  train(*local, *engine, 10, 20);
  EXPECT_EQ(pull(*local, table, all_rows(table), *engine), expected);
  EXPECT_EQ(local->save().arrays.size(), 5U);

  local->set_optimizer(optim::SGD{.lr = 1});
  EXPECT_NE(error_of_call([&] { local->load(state); }).find("no state 'mean'"), std::string::npos);
  local->set_optimizer(optimizer);
  StoreState other = state;
  other.arrays.erase(other.arrays.begin());
  EXPECT_NE(error_of_call([&] { local->load(other); }).find("has no table 'table'"), std::string::npos);
}

// Under such a version, adam's correction of its first steps would divide by zero.
TEST(RowCheckpoint, WithAnImpossibleVersionIsRefused) {
  const TableSpec table = table_of(10, 2, "zeros");
  const auto engine = make_serial_engine();
  const auto expect_refusal = [&](KVStore& store) {
    store.init_table(table);
    store.set_optimizer(optim::Adam{.lr = 0.1});
    store.push_rows({{table.name, ids_of({1, 3}, *engine), rows_of({1, 2, 3, 4}, 2, *engine)}});
    store.step_end();
    StoreState state = store.save();
    for (auto& [name, array] : state.arrays)
      if (name == "table:table:versions") array = NDArray::from<std::int64_t>({1, -1}, Shape{2}, {}, *engine);
    const std::vector<float> before = pull(store, table, all_rows(table), *engine);
    try {
      store.load(state);
      FAIL();
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("row 3 at version -1"), std::string::npos) << error.what();
    }
    EXPECT_EQ(pull(store, table, all_rows(table), *engine), before);
  };
  ClusterInProcess cluster({.workers = 1, .servers = 1, .engine = engine.get()});
  expect_refusal(cluster.worker(0));
  StoreOptions options;
  options.engine = engine.get();
  expect_refusal(*KVStore::create("local", options));
}

}  // namespace
}  // namespace paceline::test
