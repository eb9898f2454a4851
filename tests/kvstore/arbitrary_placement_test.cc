// Jobs whose scheduler places partitions as a test says: on one server, unevenly, at random. Weights are those of the
// default placement, bit for bit.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <paceline/updater.h>
#include <support/cluster_in_process.h>

#include <array>
#include <functional>
#include <map>
#include <random>

#include "hand_made_worker.h"
#include "key_partition.h"
#include "parse_body.h"
#include "placement_policy.h"
#include "row_support.h"
#include "rows/table_layout.h"
#include "servers/servers.h"
#include "sparse.pb.h"
#include "store.pb.h"

namespace paceline::test {
namespace {

constexpr int kServers = 3;
constexpr int kWorkers = 2;

// Draws the server of each partition, whatever its size and group.
class DrawnPlacement final : public PlacementPolicy {
 public:
  explicit DrawnPlacement(std::function<int()> next) : next_(std::move(next)) {}
  std::vector<int> place_keys(std::span<const std::int64_t> bytes) override { return draw(bytes.size()); }
  std::vector<int> place_table(const TableSpec&, int partitions) override {
    return draw(static_cast<std::size_t>(partitions));
  }

 private:
  std::vector<int> draw(std::size_t count) {
    std::vector<int> servers(count);
    for (int& server : servers) server = next_();
    return servers;
  }

  const std::function<int()> next_;
};

using MakePolicy = std::function<std::shared_ptr<PlacementPolicy>()>;

MakePolicy random_placement(unsigned seed) {
  return [seed] {
    return std::make_shared<DrawnPlacement>(
        [random = std::mt19937(seed)]() mutable { return static_cast<int>(random() % kServers); });
  };
}

// By name; the first is the default.
std::vector<std::pair<std::string, MakePolicy>> placements(unsigned seed) {
  return {{"default", [] { return nullptr; }},
          {"all on server 1", [] { return std::make_shared<DrawnPlacement>([] { return 1; }); }},
          {"uneven, nothing on server 1",
           [] { return std::make_shared<DrawnPlacement>([i = 0]() mutable { return i++ % 7 == 0 ? 0 : 2; }); }},
          {str("random, seed ", seed), random_placement(seed)}};
}

const std::array<TableSpec, 2> kTables{
    TableSpec{"table", 3000, 6, DType::kFloat32, Spec::parse("normal:sigma=1,seed=3")},
    TableSpec{"tiny", 5, 3, DType::kFloat32, Spec::parse("zeros")}};
const std::vector<std::pair<std::string, Shape>> kKeys{
    {"large", Shape{300, 1000}}, {"small", Shape{37}}, {"later", Shape{50000}}};

struct Outcome {
  std::map<std::string, std::vector<float>> weights;
  StoreState state;
};

// One worker's part of the job.
class Member {
 public:
  Member(int worker, KVStore& store, Engine& engine) : worker_(worker), store_(store), engine_(engine) {
    for (const auto& [name, shape] : kKeys)
      weights_.push_back({name, NDArray::full(shape, 0.5, DType::kFloat32, {}, engine)});
    store.init({{weights_[0].key, weights_[0].out}, {weights_[1].key, weights_[1].out}});
    for (const TableSpec& table : kTables) store.init_table(table);
    store.init({{weights_[2].key, weights_[2].out}});
    store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.5});
  }

  // What is pushed follows from the worker and the number of the step.
  void step(int number) {
    std::mt19937 random(static_cast<unsigned>(kWorkers * number + worker_));
    std::vector<PushItem> pushes;
    for (const PullItem& weight : weights_)
      pushes.push_back(
          {weight.key, NDArray::from<float>(random_values(random, static_cast<std::size_t>(weight.out.size())),
                                            weight.out.shape(), {}, engine_)});
    store_.push_pull(pushes, weights_, 1 + worker_);
    std::vector<RowPush> row_pushes;
    std::vector<RowPull> row_pulls;
    for (const TableSpec& table : kTables) {
      const std::size_t count = table.rows > 100 ? 200 : 3;
      const NDArray ids = ids_of(random_ids(random, table.rows, count), engine_);
      row_pushes.push_back(
          {table.name, ids,
           rows_of(random_values(random, count * static_cast<std::size_t>(table.width)), table.width, engine_)});
      row_pulls.push_back(
          {table.name, ids, NDArray::zeros(Shape{ids.size(), table.width}, DType::kFloat32, {}, engine_)});
    }
    store_.push_pull_rows(row_pushes, row_pulls, 1 + worker_);
    store_.step_end();
    for (const PullItem& weight : weights_) weight.out.wait();
    for (const RowPull& rows : row_pulls) rows.out.wait();
  }

  std::map<std::string, std::vector<float>> weights() {
    std::map<std::string, std::vector<float>> all;
    for (const PullItem& weight : weights_) {
      store_.pull(weight.key, weight.out);
      all[weight.key] = weight.out.to_vector<float>();
    }
    for (const TableSpec& table : kTables) all[table.name] = pull(store_, table, all_rows(table), engine_);
    return all;
  }

 private:
  const int worker_;
  KVStore& store_;
  Engine& engine_;
  std::vector<PullItem> weights_;
};

// Three steps of a job, the first ones or those that follow a state. Workers of dist_async take turns, so that the
// order of their pushes is the same each time.
Outcome train(const std::string& mode, const MakePolicy& policy, Engine& engine, const StoreState* from) {
  constexpr int kSteps = 3;
  const bool synchronous = mode.starts_with("dist_sync");
  const int first = from ? kSteps : 0;
  ClusterInProcess cluster(
      {.mode = mode, .workers = kWorkers, .servers = kServers, .engine = &engine, .placement = policy()});
  std::vector<std::unique_ptr<Member>> members(kWorkers);
  cluster.run([&](int worker, KVStore& store) {
    auto& member = members[static_cast<std::size_t>(worker)];
    member = std::make_unique<Member>(worker, store, engine);
    if (from) store.load(worker == 0 ? *from : StoreState{});
    store.barrier();
    for (int step = first; synchronous && step < first + kSteps; ++step) member->step(step);
  });
  for (int step = first; !synchronous && step < first + kSteps; ++step)
    for (const auto& member : members) member->step(step);
  Outcome outcome;
  cluster.run([&](int worker, KVStore& store) {
    store.barrier();
    auto weights = members[static_cast<std::size_t>(worker)]->weights();
    StoreState state = store.save();
    if (worker == 0) outcome = {std::move(weights), std::move(state)};
  });
  return outcome;
}

void expect_same(const Outcome& got, const Outcome& expected) {
  for (const auto& [name, values] : expected.weights) EXPECT_TRUE(got.weights.at(name) == values) << name;
  const auto by_name = [](const StoreState& state) { return std::map(state.counters.begin(), state.counters.end()); };
  EXPECT_EQ(by_name(got.state), by_name(expected.state));
}

void trains_alike(const std::string& mode) {
  const unsigned seed = std::random_device()();
  const auto engine = make_threaded_engine();
  const auto all = placements(seed);
  const Outcome half = train(mode, all[0].second, *engine, nullptr);
  const Outcome whole = train(mode, all[0].second, *engine, &half.state);
  ASSERT_FALSE(half.weights.at("large") == whole.weights.at("large"));
  ASSERT_FALSE(half.weights.at("table") == whole.weights.at("table"));
  for (std::size_t i = 1; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].first);
    const Outcome here = train(mode, all[i].second, *engine, nullptr);
    expect_same(here, half);
    // The state goes on under another placement.
    const auto& [name, other] = all[(i + 1) % all.size()];
    SCOPED_TRACE("then " + name);
    expect_same(train(mode, other, *engine, &here.state), whole);
  }
}

TEST(ArbitraryPlacement, SynchronousTrainingIsBitwiseTheSame) { trains_alike("dist_sync"); }

TEST(ArbitraryPlacement, AsynchronousTrainingInTurnsIsBitwiseTheSame) { trains_alike("dist_async"); }

// A server answers for the partitions that the scheduler has placed on it, and refuses the others.
TEST(ArbitraryPlacement, PartitionsAreWhereTheSchedulerPlacedThem) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  const ClusterConfig job = job_config("inproc", kServers, 2);
  SchedulerThread scheduler(job, random_placement(seed)());
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::jthread> serving;
  for (int s = 0; s < kServers; ++s) {
    servers.push_back(std::make_unique<Server>(member(job, Role::kServer, 0, s)));
    serving.emplace_back([&server = *servers.back()] { server.run(); });
  }
  Node node(member(job, Role::kWorker, 0, 1), Node::Handlers{});
  std::jthread joining([&] { node.join(); });
  const auto engine = make_serial_engine();
  StoreOptions options;
  options.engine = engine.get();
  const auto backend = make_servers_backend(member(job, Role::kWorker, 0, 0), Spec::parse("dist_async"), options);
  joining.join();

  const Shape shape{200, 1000};
  std::jthread initialising([&] { backend->init({{"w", NDArray::zeros(shape, DType::kFloat32, {}, *engine)}}); });
  wire::InitRequest init;
  init.set_call(1);
  init.set_mode("dist_async");
  write_key({"w", DType::kFloat32, shape, false}, init.add_keys());
  const auto reply = parse_body<wire::InitReply>(test::ask(node, MessageKind::kInit, init.SerializeAsString()));
  init.set_values(true);
  test::ask(node, MessageKind::kInit, init.SerializeAsString());
  init.set_values(false);
  init.set_held(true);
  test::ask(node, MessageKind::kInit, init.SerializeAsString());
  initialising.join();
  backend->init_tables({kTables[0]});
  wire::PlaceTablesRequest tables;
  write_table(kTables[0], tables.add_tables());
  const auto placed =
      parse_body<wire::PlaceTablesReply>(test::ask(node, MessageKind::kPlaceTables, tables.SerializeAsString()));

  const auto error_at = [&](int server, MessageKind kind, const google::protobuf::MessageLite& body) {
    return error_of_call([&] { node.ask_and_wait({Role::kServer, server}, message_of(kind, body)); });
  };
  ASSERT_EQ(reply.placement().servers_size(), reply.partitions_size());
  ASSERT_GT(reply.partitions_size(), kServers);
  for (int p = 0; p < reply.partitions_size(); ++p) {
    for (int server = 0; server < kServers; ++server) {
      wire::SaveRequest save;
      save.set_partition(reply.partitions(p).id());
      const bool here = reply.placement().servers(p) == static_cast<std::uint32_t>(server);
      const std::string error = error_at(server, MessageKind::kSave, save);
      EXPECT_EQ(error.find(str("this server has no partition ", p)) == std::string::npos, here) << error;
      EXPECT_EQ(error.empty(), here) << error;
    }
  }
  ASSERT_EQ(placed.placements_size(), 1);
  const wire::Placement& rows = placed.placements(0);
  ASSERT_EQ(rows.servers_size(), TableLayout::partitions_for(kTables[0], kServers));
  for (int p = 0; p < rows.servers_size(); ++p) {
    for (int server = 0; server < kServers; ++server) {
      wire::SaveRowsRequest save;
      save.set_table(hash_key(kTables[0].name));
      save.set_partition(static_cast<std::uint32_t>(p));
      const bool here = rows.servers(p) == static_cast<std::uint32_t>(server);
      const std::string error = error_at(server, MessageKind::kSaveRows, save);
      EXPECT_EQ(error.find(str("it is on server ", rows.servers(p))) == std::string::npos, here) << error;
      EXPECT_EQ(error.empty(), here) << error;
    }
  }

  // Values and tables that come with another placement.
  wire::InitValuesRequest values;
  values.set_mode("dist_async");
  write_key({"w", DType::kFloat32, shape, false}, values.add_keys());
  values.mutable_partition()->set_id(100);
  values.set_server(1);
  EXPECT_NE(
      error_at(0, MessageKind::kInitValues, values).find("is placed on server 1, and its values came to server 0"),
      std::string::npos);
  wire::DeclareTable declare = tables.tables(0);
  declare.set_mode("dist_async");
  EXPECT_NE(error_at(0, MessageKind::kDeclareTable, declare).find("without the placement"), std::string::npos);
  *declare.mutable_placement() = rows;
  EXPECT_EQ(error_at(0, MessageKind::kDeclareTable, declare), "");
  declare.mutable_placement()->set_servers(0, (rows.servers(0) + 1) % kServers);
  EXPECT_NE(error_at(0, MessageKind::kDeclareTable, declare).find(str("but it is on server ", rows.servers(0))),
            std::string::npos);
  declare.mutable_placement()->set_servers(0, kServers);
  EXPECT_NE(error_at(0, MessageKind::kDeclareTable, declare).find("the job has 3 servers"), std::string::npos);

  node.leave();
  backend->finish();
}

// The scheduler draws a place once. A worker that comes back later is told the same.
TEST(ArbitraryPlacement, AWorkerThatReturnsFindsKeysAndRows) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  const auto engine = make_threaded_engine();
  ClusterInProcess cluster({.mode = "dist_async:staleness=none",
                            .workers = kWorkers,
                            .servers = kServers,
                            .engine = engine.get(),
                            .placement = random_placement(seed)()});
  std::vector<std::unique_ptr<Member>> members(kWorkers);
  cluster.run([&](int worker, KVStore& store) {
    members[static_cast<std::size_t>(worker)] = std::make_unique<Member>(worker, store, *engine);
    store.barrier();
  });
  for (int step = 0; step < 2; ++step)
    for (const auto& member : members) member->step(step);
  members[1].reset();
  cluster.kill_worker(1);
  cluster.join_worker(1);
  members[1] = std::make_unique<Member>(1, cluster.worker(1), *engine);
  const auto before = members[0]->weights();
  EXPECT_TRUE(members[1]->weights() == before);
  members[1]->step(2);
  const auto after = members[0]->weights();
  EXPECT_TRUE(members[1]->weights() == after);
  for (const auto& [name, values] : before) EXPECT_FALSE(values == after.at(name)) << name;
}

// A policy that names what is not there fails the declaration at every worker.
TEST(ArbitraryPlacement, WhatAPolicyGetsWrongIsSaid) {
  class Wrong final : public PlacementPolicy {
   public:
    std::vector<int> place_keys(std::span<const std::int64_t>) override { return {}; }
    std::vector<int> place_table(const TableSpec&, int partitions) override {
      return std::vector<int>(static_cast<std::size_t>(partitions), kServers);
    }
  };
  ClusterInProcess cluster({.workers = kWorkers, .servers = kServers, .placement = std::make_shared<Wrong>()});
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = NDArray::zeros(Shape{4}, DType::kFloat32, {}, cluster.engine(worker));
    EXPECT_NE(error_of_call([&] {
                store.init({{"w", weight}});
              }).find("names 0 servers for 1 partitions"),
              std::string::npos);
    EXPECT_NE(error_of_call([&] { store.init_table(kTables[0]); }).find("is placed on server 3; the job has 3 servers"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace paceline::test
