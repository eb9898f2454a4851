// Collective calls of which a part fails at one worker: all workers hear of it, and none waits for the one that failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvstore/failed_array.h>
#include <kvstore/hand_made_worker.h>
#include <kvstore/row_support.h>
#include <support/cluster_in_process.h>
#include <support/own_objects.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "key_partition.h"
#include "refusal.h"

namespace paceline::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

NDArray full(float value, Engine& engine, const Shape& shape = {2}) {
  return NDArray::full(shape, value, DType::kFloat32, {}, engine);
}

// A worker that has heard of a failure leaves, so a test in which another one waits for it ends too.
TEST(SharedFailure, OfASaveIsHeardByAll) {
  ClusterInProcess cluster(
      {.mode = "dist_async:staleness=none,compression=top_k,min_bytes=0", .servers = 1, .serial = false});
  std::array<std::string, 2> heard, again;
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    store.init({{"w", full(1, engine)}});
    store.set_optimizer(optim::SGD{.lr = 1});
    store.barrier();
    // The state of the codec fails with the gradient, until the next gradient.
    const NDArray unread = full(1, engine);
    if (worker == 1) fail(unread);
    store.push("w", unread);
    const auto w = static_cast<std::size_t>(worker);
    heard[w] = error_of_call([&] { store.save(); });
    if (heard[w].empty()) return store.finish();
    store.push("w", full(1, engine));
    again[w] = error_of_call([&] { EXPECT_EQ(store.save().arrays.empty(), worker == 1); });
    store.finish();
  });
  EXPECT_EQ(heard[0], "worker 1: [fails] test");
  EXPECT_EQ(heard[1], "[fails] test");
  for (const std::string& error : again) EXPECT_EQ(error, "");
}

// Calls `work` for workers 0 and 1 of a job with one server. Worker 1 cannot read what it gets of the first state that
// is loaded: a third worker has put something broken there.
void with_a_broken_share(const std::string& mode, const std::function<void(int, KVStore&, Engine&)>& work) {
  const ClusterConfig job = job_config("inproc", 1, 3);
  SchedulerThread scheduler(job);
  Server server(member(job, Role::kServer, 0), {}, 1);
  std::jthread serving([&] { server.run(); });
  std::vector<std::jthread> workers;
  std::atomic<bool> left = false;
  workers.emplace_back([&] {
    Node node(member(job, Role::kWorker, 0, 2), Node::Handlers{});
    node.join();
    wire::LoadRequest body;
    wire::Blob* const blob = body.add_blobs();
    blob->set_worker(1);
    blob->set_name("broken");
    blob->set_dtype(static_cast<int>(DType::kFloat32));
    blob->add_shape(0);
    ask(node, MessageKind::kLoad, body.SerializeAsString());
    node.leave();
    left = true;
    left.notify_all();
  });
  for (int worker = 0; worker < 2; ++worker)
    workers.emplace_back([&, worker] {
      const auto engine = make_threaded_engine();
      StoreOptions options;
      options.engine = engine.get();
      const auto store = KVStore::join(member(job, Role::kWorker, 0, worker), mode, options);
      left.wait(false);
      work(worker, *store, *engine);
      store->finish();
    });
}

TEST(SharedFailure, OfALoadIsHeardByAll) {
  for (const std::string mode : {"dist_sync", "dist_async:staleness=none", "dist_local:steps=1"}) {
    SCOPED_TRACE(mode);
    std::array<std::string, 2> heard, again;
    std::array<float, 2> loaded{};
    with_a_broken_share(mode, [&](int worker, KVStore& store, Engine& engine) {
      const NDArray weight = full(1, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1});
      const StoreState state = worker == 0 ? StoreState{{{"w", full(5, engine)}}, {}} : StoreState{};
      const auto w = static_cast<std::size_t>(worker);
      heard[w] = error_of_call([&] { store.load(state); });
      if (heard[w].find("broken") == std::string::npos) return;
      // Nothing has been learned since, so nothing may move the weights from those of the state.
      store.push_pull({{"w", full(0, engine)}}, {{"w", weight}});
      store.step_end();
      store.barrier();
      store.pull("w", weight);
      loaded[w] = weight.to_vector<float>()[0];
      again[w] = error_of_call([&] { store.load(state); });
    });
    const std::string part = "the state is loaded in part, until a load succeeds: ";
    EXPECT_THAT(heard[0], StartsWith(part + "worker 1: a piece of 'broken'"));
    EXPECT_THAT(heard[1], StartsWith(part + "a piece of 'broken'"));
    EXPECT_EQ(loaded, (std::array<float, 2>{5, 5}));
    for (const std::string& error : again) EXPECT_EQ(error, "");
  }
}

// What a failed gradient has spoiled at one worker is loaded anew.
TEST(SharedFailure, BeforeALoadIsOver) {
  for (const std::string mode : {"dist_sync", "dist_async:staleness=none", "dist_local:steps=1", "ring", "gossip"}) {
    SCOPED_TRACE(mode);
    const int servers = mode == "ring" || mode == "gossip" ? 0 : 2;
    ClusterInProcess cluster({.mode = mode, .servers = servers, .serial = false});
    std::array<float, 2> loaded{};
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = full(1, engine), gradient = full(1, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1});
      store.barrier();
      if (worker == 1) fail(gradient);
      store.push("w", gradient);
      store.step_end();
      EXPECT_EQ(error_of_call([&] {
                  store.load(worker == 0 ? StoreState{{{"w", full(5, engine)}}, {}} : StoreState{});
                }),
                "");
      const NDArray after = full(0, engine);
      store.pull("w", after);
      loaded[static_cast<std::size_t>(worker)] = after.to_vector<float>()[0];
      store.barrier();
    });
    EXPECT_EQ(loaded, (std::array<float, 2>{5, 5}));
  }
}

// A load that is refused mends nothing.
TEST(SharedFailure, OfAGradientIsHeardUntilALoadSucceeds) {
  ClusterInProcess cluster({.mode = "gossip", .servers = 0, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    store.init({{"w", full(1, engine)}});
    store.set_optimizer(optim::SGD{.lr = 1});
    const NDArray gradient = full(1, engine);
    if (worker == 1) fail(gradient);
    store.push("w", gradient);
    store.step_end();
    const auto load = [&](const Shape& shape) {
      return error_of_call([&] {
        store.load(worker == 0 ? StoreState{{{"w", full(5, engine, shape)}}, {}} : StoreState{});
      });
    };
    EXPECT_NE(load({3}), "");
    EXPECT_THAT(error_of_call([&] { store.barrier(); }), HasSubstr("[fails] test"));
    EXPECT_EQ(load({2}), "");
    EXPECT_EQ(error_of_call([&] { store.barrier(); }), "");
  });
}

// A count that leaves no room to count on is found before anything changes.
TEST(SharedFailure, OfALoadWithAnImpossibleCountChangesNothing) {
  for (const std::string mode : {"dist_sync", "dist_local:steps=1", "ring", "gossip"}) {
    SCOPED_TRACE(mode);
    const int servers = mode == "ring" || mode == "gossip" ? 0 : 2;
    ClusterInProcess cluster({.mode = mode, .servers = servers, .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = full(1, engine);
      store.init({{"w", weight}});
      StoreState state;
      if (worker == 0) state = {{{"w", full(5, engine)}}, {{"examples:w", "9223372036854775807"}}};
      EXPECT_THAT(
          error_of_call([&] { store.load(state); }),
          HasSubstr("the checkpoint's counter examples:w is '9223372036854775807', expected a whole number up "));
      store.pull("w", weight);
      EXPECT_EQ(weight.to_vector<float>()[0], 1);
      store.barrier();
    });
  }
}

// The servers lack the mode, and worker 0 is told so when it sends the values.
TEST(SharedFailure, OfAnInitIsHeardByAll) {
  ClusterInProcess cluster({.mode = "near", .serial = false, .own = own_objects(), .own_of_servers = Extensions()});
  std::array<std::string, 2> heard, again;
  std::promise<void> other;  // has heard
  cluster.run([&](int worker, KVStore& store) {
    const InitValue key{"w", full(1, cluster.engine(worker))};
    const auto w = static_cast<std::size_t>(worker);
    heard[w] = error_of_call([&] { store.init({key}); });
    if (worker == 1) other.set_value();
    if (worker == 1 || other.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready)
      again[w] = error_of_call([&] { store.init({key}); });
    store.finish();
  });
  EXPECT_THAT(heard[0], HasSubstr("the mode 'near' of their program, which this server does not have"));
  EXPECT_EQ(heard[1], "worker 0: " + heard[0]);
  EXPECT_EQ(again, heard);
}

// Two workers by hand. The first call has placed a partition before its values are given up, and who comes later hears
// of it in the second call.
TEST(SharedFailure, OfAnInitIsHeardByWhoJoinsLater) {
  const ClusterConfig config = job_config("inproc", 1, 2);
  SchedulerThread scheduler(config);
  std::array<std::unique_ptr<Node>, 3> nodes;  // the last is the server
  const auto at_all = [](std::size_t count, const auto& work) {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  };
  at_all(3, [&](std::size_t i) {
    const Role role = i < 2 ? Role::kWorker : Role::kServer;
    nodes[i] = std::make_unique<Node>(member(config, role, 0, i < 2 ? static_cast<int>(i) : 0), Node::Handlers{});
    nodes[i]->join();
  });
  const auto reply_to = [&](std::size_t worker, const wire::InitRequest& request) {
    wire::InitReply reply;
    EXPECT_TRUE(reply.ParseFromString(ask(*nodes[worker], MessageKind::kInit, request.SerializeAsString()).body));
    return reply;
  };
  std::array<wire::InitReply, 2> replies;
  wire::InitRequest declaration;
  declaration.set_call(1);
  declaration.set_mode("dist_sync");
  write_key({"w", DType::kFloat32, Shape{2}, false}, declaration.add_keys());
  const auto declare = [&](std::size_t worker) { replies[worker] = reply_to(worker, declaration); };
  at_all(2, declare);
  wire::InitRequest values;
  values.set_call(1);
  values.set_values(true);
  values.set_sender(0);
  const std::string why = refusal_of(OutOfMemory("no room"), "worker 0: ");
  at_all(2, [&](std::size_t worker) {
    wire::InitRequest mine = values;
    if (worker == 0) mine.set_why(why);
    replies[worker] = reply_to(worker, mine);
  });
  EXPECT_EQ(replies[1].why(), why);
  declare(1);
  EXPECT_EQ(replies[1].why(), why);
  declaration.set_call(2);
  at_all(2, declare);
  for (const wire::InitReply& reply : replies) {
    EXPECT_EQ(reply.why(), "");
    EXPECT_EQ(reply.placement().first(), 0U);
    EXPECT_EQ(reply.placement().servers_size(), 2);
  }
  at_all(3, [&](std::size_t i) { nodes[i]->leave(); });
  EXPECT_EQ(scheduler.result(), "");
}

// Has a state at the workers that the servers' policy of the same name lacks.
class Policy final : public Staleness {
 public:
  explicit Policy(bool more) : more_(more) {}
  std::vector<std::string> state_names() const override { return more_ ? Names{"mean", "more"} : Names{"mean"}; }
  void correct(const Tile<float>&, const StaleContext&) const override {}
  void correct(const Tile<double>&, const StaleContext&) const override {}

 private:
  using Names = std::vector<std::string>;
  const bool more_;
};

Extensions policy(bool more) {
  return {.modes = {}, .policies = {{"changed", std::make_shared<Policy>(more)}}, .codecs = {}};
}

TEST(SharedFailure, OfALoadWithinItsChangesLeavesTheWeightsOfTheServers) {
  const TableSpec table = table_of(3, 1, "zeros");
  for (const std::string mode : {"dist_sync:staleness=changed", "dist_async:staleness=changed"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster(
        {.mode = mode, .servers = 1, .serial = false, .own = policy(true), .own_of_servers = policy(false)});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = full(1, engine);
      store.init({{"w", weight}});
      store.init_table(table);
      store.set_optimizer(optim::SGD{.lr = 1});
      for (int step = 0; step < 3; ++step) {
        store.push_pull({{"w", full(0, engine)}}, {{"w", weight}});
        store.step_end();
      }
      StoreState state{{{"w", full(5, engine)}}, {{"version:w", "1"}}};
      const std::string name = "table:" + table.name;
      state.arrays.emplace_back(name + ":ids", ids_of({0}, engine));
      state.arrays.emplace_back(name + ":versions", ids_of({1}, engine));
      state.arrays.emplace_back(name + ":weight", full(5, engine, {1, 1}));
      const StoreState whole = state;
      state.arrays.emplace_back(name + ":changed_more", full(5, engine, {1, 1}));
      const auto error_of_load = [&](const StoreState& loaded) {
        return error_of_call([&] { store.load(worker == 0 ? loaded : StoreState{}); });
      };
      EXPECT_THAT(error_of_load(state), AllOf(HasSubstr("loaded in part"), HasSubstr("no state 'changed_more'")))
          << worker;
      EXPECT_EQ(weight.to_vector<float>()[0], 5) << worker;
      // The servers refuse a push from a version that they have not reached.
      store.push_pull({{"w", full(0, engine)}}, {{"w", weight}});
      store.step_end();
      EXPECT_EQ(error_of_call([&] { weight.wait(); }), "") << worker;
      store.barrier();
      EXPECT_EQ(error_of_load(whole), "") << worker;
      EXPECT_EQ(pull(store, table, {0}, engine), std::vector<float>{5}) << worker;
    });
  }
}

}  // namespace
}  // namespace paceline::test
