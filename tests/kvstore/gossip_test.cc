// Mode gossip: what meetings of two keep and what they bring together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <barrier>
#include <cmath>
#include <numeric>
#include <set>
#include <thread>

#include "failed_array.h"
#include "gossip/gossip.h"
#include "gossip/gossip_peer.h"
#include "parse_body.h"
#include "scheduler_client.h"

namespace paceline::test {
namespace {

NDArray full(std::int64_t size, double value, Engine& engine) {
  return NDArray::full(Shape{size}, value, DType::kFloat64, {}, engine);
}

struct Spread {
  double mean = 0, variance = 0;
};

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
  for (const double value : values) spread.mean += value / static_cast<double>(values.size());
  for (const double value : values) spread.variance += std::pow(value - spread.mean, 2);
  return spread;
}

TEST(Gossip, DrawsEveryOtherWorkerByTheSeed) {
  const std::vector<int> others{0, 1, 3};
  std::map<int, int> met;
  int differ = 0;
  for (int step = 1; step <= 600; ++step) {
    ++met[gossip_partner(others, 7, 2, step)];
    differ += gossip_partner(others, 7, 2, step) != gossip_partner(others, 8, 2, step);
    EXPECT_EQ(gossip_partner(others, 7, 2, step), gossip_partner(others, 7, 2, step));
  }
  for (const int other : others) EXPECT_NEAR(met[other], 200, 50) << other;
  EXPECT_NEAR(differ, 400, 50);
}

// All may meet at the scheduler while a message about an answer is on its way: the answer itself has arrived by then.
TEST(Gossip, SettlesThoughAnotherWorkerMayAskForAnAnswerAgain) {
  const ClusterConfig job = job_config("inproc", 0, 2);
  SchedulerThread scheduler(job);
  const auto engine = make_serial_engine();
  StoreOptions options;
  options.engine = engine.get();
  const auto local = make_local_backend(options, {});
  local->init({{"w", full(4, 1, *engine)}});
  Node other(member(job, Role::kWorker, scheduler.port(), 1), Node::Handlers{});
  std::thread joining([&] { other.join(); });
  GossipPeer peer(member(job, Role::kWorker, scheduler.port(), 0), *local, 1);
  joining.join();
  peer.add_keys({{"w", DType::kFloat64, Shape{4}}});

  wire::GossipMeet body;
  body.set_number(1);
  body.set_keys(1);
  Message meet;
  meet.header.kind = MessageKind::kGossipMeet;
  meet.body = body.SerializeAsString();
  meet.payload = {Frame::of(std::string(4 * sizeof(double), '\0'))};
  const PeerId first{Role::kWorker, 0};
  EXPECT_FALSE(other.ask_and_wait(first, meet).payload.empty());
  peer.settle();
  EXPECT_FALSE(other.ask_and_wait(first, meet).payload.empty()) << "the answer is kept";
  Message taken;
  taken.header.kind = MessageKind::kGossipTaken;
  taken.body = meet.body;
  other.ask_and_wait(first, taken);
  peer.leave();
  other.leave();
}

TEST(Gossip, RefusesAKeyThatNoFrameHolds) {
  ClusterInProcess cluster({.mode = "gossip", .servers = 0, .transport = "tcp:max_frame_bytes=8000"});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    EXPECT_THAT(
        error_of_call([&] {
          store.init({{"large", full(1001, 0, engine)}});
        }),
        testing::HasSubstr("key 'large' has 8008 bytes, and mode gossip sends a key as one frame, of at most 8000"));
    store.init({{"small", full(1000, 0, engine)}});
  });
}

struct Meeting {
  int workers = 4;
  std::string transport = "inproc";
  bool faulty = false;
  bool serial = false;
};

// Each worker takes one step to a place of its own; then they only meet: first as they come, which shows that nothing
// is lost, then one after the other: whoever is met while it waits for its own meeting may come to lie further away.
void meets(const Meeting& meeting) {
  constexpr int kTogether = 10, kInTurns = 20;
  constexpr std::int64_t kLarge = 20000;  // longer than any answer that is repeated from a message kept
  SCOPED_TRACE(str(meeting.workers, " workers over ", meeting.transport, meeting.faulty ? " with faults" : ""));
  ClusterInProcess cluster({.mode = "gossip:seed=3",
                            .workers = meeting.workers,
                            .servers = 0,
                            .transport = meeting.transport,
                            .faulty = meeting.faulty,
                            .serial = meeting.serial});
  std::barrier together(meeting.workers);
  std::vector<double> small, large;
  small.resize(static_cast<std::size_t>(meeting.workers));
  large = small;
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray one = full(1, worker == 0 ? 0.25 : 77, engine), many = full(kLarge, 1, engine);
    store.init({{"one", one}, {"many", many}});
    EXPECT_EQ(one.item<double>(), 0.25);
    store.set_optimizer(optim::SGD{.lr = 1});
    store.push("one", full(1, -worker, engine));
    store.push("many", full(kLarge, worker * worker, engine));
    for (int step = 0; step < kTogether; ++step) store.step_end();
    store.report();  // blocks until this worker's meetings are over
    for (int turn = 0; turn < kInTurns * meeting.workers; ++turn) {
      together.arrive_and_wait();
      if (turn % meeting.workers != worker) continue;
      store.step_end();
      store.report();
    }
    together.arrive_and_wait();
    store.pull("one", one);
    store.pull("many", many);
    small[static_cast<std::size_t>(worker)] = one.item<double>();
    const auto values = many.to_vector<double>();
    EXPECT_EQ(values.front(), values.back());
    large[static_cast<std::size_t>(worker)] = values.back();
  });
  double squares = 0, ranks = 0;
  for (int worker = 0; worker < meeting.workers; ++worker) {
    ranks += worker;
    squares += worker * worker;
  }
  EXPECT_NEAR(spread_of(small).mean, 0.25 + ranks / meeting.workers, 1e-12);
  EXPECT_NEAR(spread_of(large).mean, 1 - squares / meeting.workers, 1e-12);
  EXPECT_LT(spread_of(small).variance, 1e-3);  // of 5 with four workers
  EXPECT_LT(spread_of(large).variance, 1e-3);
}

TEST(Gossip, MeetingsKeepTheMeanAndBringTheWorkersTogether) {
  meets({});
  meets({.workers = 2, .serial = true});  // the two choose each other at every step
  meets({.workers = 3, .transport = "shm"});
  meets({.workers = 1});
}

TEST(Gossip, NothingIsTakenTwiceOrLostWhereMessagesAre) {
  meets({.workers = 3, .faulty = true});
  meets({.workers = 3, .transport = "tcp", .faulty = true});
}

// f_i(x) = (x - c_i)^2 / 2: each step moves the mean as one process would that descends the mean of the f_i.
TEST(Gossip, TheMeanDescendsTheMeanLoss) {
  constexpr int kWorkers = 4, kSteps = 60;
  constexpr double kRate = 0.1;
  const std::vector<double> optima{-3, 1, 4, 10};
  ClusterInProcess cluster({.mode = "gossip:steps=2", .workers = kWorkers, .servers = 0, .serial = false});
  std::barrier together(kWorkers);
  std::vector<double> alone(kWorkers), after(kWorkers);
  cluster.run([&](int worker, KVStore& store) {
    const auto index = static_cast<std::size_t>(worker);
    Engine& engine = cluster.engine(worker);
    const NDArray x = full(1, 50, engine);
    store.init({{"x", x}});
    store.set_optimizer(optim::SGD{.lr = kRate});
    for (int step = 0; step < kSteps; ++step) {
      store.pull("x", x);
      const double gradient = x.item<double>() - optima[index];
      together.arrive_and_wait();  // all gradients are of one moment
      store.push("x", full(1, gradient, engine));
      store.step_end();
      EXPECT_EQ(store.report().clock, step + 1);
      together.arrive_and_wait();
    }
    store.pull("x", x);
    alone[index] = x.item<double>();
    together.arrive_and_wait();
    store.barrier();
    store.pull("x", x);
    after[index] = x.item<double>();
  });
  const double expected = 3 + std::pow(1 - kRate, kSteps) * (50 - 3);
  EXPECT_NEAR(spread_of(alone).mean, expected, 1e-12);
  EXPECT_GT(spread_of(alone).variance, 1e-6);  // they are pulled apart all the time,
  EXPECT_EQ(spread_of(after).variance, 0);     // and equal after a barrier
  EXPECT_NEAR(after[0], expected, 1e-12);
}

TEST(Gossip, GoesOnWithoutAWorkerThatIsLost) {
  ClusterInProcess cluster({.mode = "gossip", .workers = 3, .servers = 0, .serial = false});
  std::vector<NDArray> arrays(3);
  const auto steps = [&](int count) {
    cluster.run([&, count](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      for (int step = 0; step < count; ++step) {
        store.push("w", full(5000, -1 - worker, engine));
        store.step_end();
      }
    });
  };
  cluster.run([&](int worker, KVStore& store) {
    NDArray& array = arrays[static_cast<std::size_t>(worker)];
    array = full(5000, 0, cluster.engine(worker));
    store.init({{"w", array}});
    store.set_optimizer(optim::SGD{.lr = 1});
  });
  steps(10);
  cluster.kill_worker(2);
  steps(20);  // some of these meetings are with the lost one
  // The schedule counts examples of all live workers.
  std::int64_t examples = 0;
  const auto count_examples = [&] {
    const std::int64_t before = examples;
    cluster.run([&](int worker, KVStore& store) {
      store.barrier();
      const StoreState state = store.save();
      for (const auto& [name, value] : state.counters)
        if (worker == 0 && name == "examples:w") examples = std::stoll(value);
    });
    return examples - before;
  };
  EXPECT_GE(count_examples(), 10 * 3 + 20 * 2);
  steps(5);
  EXPECT_EQ(count_examples(), 5 * 2);
  std::vector<double> result;
  cluster.run([&](int worker, KVStore& store) {
    store.barrier();
    store.pull("w", arrays[static_cast<std::size_t>(worker)]);
    arrays[static_cast<std::size_t>(worker)].wait();
  });
  const double w = arrays[0].to_vector<double>()[4999];
  EXPECT_EQ(w, arrays[1].to_vector<double>()[4999]);
  EXPECT_GT(w, 30);  // what the slowest has learned by itself
  EXPECT_NE(error_of_call([&] { cluster.join_worker(2); }).find("takes in no worker after the start"),
            std::string::npos);
  arrays.clear();
}

TEST(Gossip, CheckpointsHoldTheMeanAndTheLeadersState) {
  const Spec optimizer = optim::SGD{.lr = 0.5, .momentum = 0.5};
  StoreState state;
  {
    ClusterInProcess cluster({.mode = "gossip", .workers = 3, .servers = 0, .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      store.init({{"w", full(4, 0, engine)}});
      store.set_optimizer(optimizer);
      store.push("w", full(4, -1 - worker, engine), 10);
      store.step_end();
      StoreState saved = store.save();
      EXPECT_EQ(saved.arrays.empty(), worker != 0);
      if (worker == 0) state = std::move(saved);
    });
  }
  for (const char* mode : {"gossip", "ring"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 2, .servers = 0, .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = full(4, 9, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optimizer);
      store.load(worker == 0 ? state : StoreState());
      EXPECT_NEAR(weight.to_vector<double>()[0], 0.5 * 2, 1e-12);  // the mean of 0.5, 1 and 1.5
      store.push("w", full(4, 0, engine));
      store.step_end();
      store.barrier();
      store.pull("w", weight);
      EXPECT_NEAR(weight.to_vector<double>()[0], 1 + 0.5 * 0.5, 1e-12);  // the momentum of rank 0 alone
    });
  }
}

TEST(Gossip, ALoadThatIsRefusedIsRefusedByAll) {
  ClusterInProcess cluster({.mode = "gossip", .workers = 2, .servers = 0, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    store.init({{"w", full(4, 0, cluster.engine(worker))}});
    EXPECT_NE(error_of_call([&] { store.load({}); }).find("the checkpoint has no key 'w'"), std::string::npos);
    store.barrier();
  });
}

template <class Failure>
std::thread worker_that_fails(const ClusterConfig& config, const std::function<void(KVStore&)>& call) {
  return std::thread([config, call] {
    const auto engine = make_serial_engine();
    StoreOptions options;
    options.engine = engine.get();
    const auto store = KVStore::join(config, "gossip", options);
    EXPECT_THROW(call(*store), Failure);
    store->finish();
  });
}

void load(KVStore& store) { store.load({}); }
void save(KVStore& store) { store.save(); }

// Its weights are of a key that the other worker does not have.
std::unique_ptr<Node> leader_with_another_key(const ClusterConfig& config) {
  auto leader = std::make_unique<Node>(config, Node::Handlers{[](const Request& request) {
                                                                wire::WorkerSlices slices;
                                                                slices.add_slices();
                                                                request.reply(message_of(MessageKind::kReply, slices));
                                                              },
                                                              nullptr});
  leader->join();
  return leader;
}

// The leader is lost when both have begun the load.
TEST(Gossip, ALoadWhoseLeaderIsLostThrowsAtTheOthers) {
  const ClusterConfig job = job_config("inproc", 0, 2);
  SchedulerThread scheduler(job);
  std::thread other = worker_that_fails<NetworkError>(member(job, Role::kWorker, scheduler.port(), 1), load);
  Node leader(member(job, Role::kWorker, scheduler.port(), 0), Node::Handlers{});
  leader.join();
  SchedulerClient client(leader);
  client.gather(client.next_barrier(), 0, false, "/rules", "");
  leader.leave();
  other.join();
}

TEST(Gossip, ALoadThatFailsAtOneWorkerEndsAtAll) {
  const ClusterConfig job = job_config("inproc", 0, 2);
  SchedulerThread scheduler(job);
  std::thread other = worker_that_fails<Corrupt>(member(job, Role::kWorker, scheduler.port(), 1), load);
  const auto leader = leader_with_another_key(member(job, Role::kWorker, scheduler.port(), 0));
  SchedulerClient client(*leader);
  const auto gather = [&](const std::string& name) {
    return client.gather(client.next_barrier(), 0, false, name, "").second;
  };
  gather("/rules");
  gather("/load");
  EXPECT_THAT(gather("/loaded")[1], testing::HasSubstr("worker 1: a worker's answer is not about the keys"));
  leader->leave();
  other.join();
}

// As above, of the weights that all get before a save.
TEST(Gossip, ASaveThatFailsAtOneWorkerEndsAtAll) {
  const ClusterConfig job = job_config("inproc", 0, 2);
  SchedulerThread scheduler(job);
  std::thread other = worker_that_fails<Corrupt>(member(job, Role::kWorker, scheduler.port(), 1), save);
  const auto leader = leader_with_another_key(member(job, Role::kWorker, scheduler.port(), 0));
  SchedulerClient client(*leader);
  client.meet(client.next_barrier(), 0);
  client.gather(client.next_barrier(), 0, false, "/mean", "");
  EXPECT_THAT(client.gather(client.next_barrier(), 0, false, "/met", "").second[1],
              testing::HasSubstr("worker 1: a worker's answer is not about the keys"));
  leader->leave();
  other.join();
}

// Worker 1 has not set the optimizer yet, so the momentum of the state does not fit it.
TEST(Gossip, ALoadThatOneWorkerCannotTakeChangesNoWorker) {
  const auto engine = make_threaded_engine();
  StoreOptions options;
  options.engine = engine.get();
  const Spec optimizer = optim::SGD{.lr = 1, .momentum = 0.5};
  const auto local = KVStore::create("local", options);
  local->init({{"w", full(4, 7, *engine)}});
  local->set_optimizer(optimizer);
  local->push("w", full(4, 0, *engine));
  const StoreState state = local->save();
  ClusterInProcess cluster({.mode = "gossip", .workers = 2, .servers = 0, .engine = engine.get()});
  cluster.run([&](int worker, KVStore& store) {
    const NDArray weight = full(4, 0, *engine);
    store.init({{"w", weight}});
    if (worker == 0) store.set_optimizer(optimizer);
    EXPECT_THROW(store.load(worker == 0 ? state : StoreState()), InvalidArgument);
    store.pull("w", weight);
    EXPECT_EQ(weight.to_vector<double>(), std::vector<double>(4, 0)) << "worker " << worker;
    if (worker == 1) store.set_optimizer(optimizer);
    store.load(worker == 0 ? state : StoreState());
    EXPECT_EQ(weight.to_vector<double>(), std::vector<double>(4, 7)) << "worker " << worker;
  });
}

TEST(Gossip, ARefusedLoadThatMetAnotherCallLeavesNoErrorBehind) {
  ClusterInProcess cluster({.mode = "gossip", .workers = 2, .servers = 0, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    store.init({{"w", full(4, 0, cluster.engine(worker))}});
    if (worker == 0)
      EXPECT_THROW(store.load({}), InvalidArgument);
    else
      EXPECT_THROW(store.all_gather("other", ""), InvalidArgument);
    EXPECT_EQ(error_of_call([&] { store.barrier(); }), "") << "worker " << worker;
  });
}

TEST(Gossip, GoesOnAfterAFailedGradient) {
  ClusterInProcess cluster({.mode = "gossip", .workers = 2, .servers = 0, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const NDArray weight = full(4, 0, engine);
    store.init({{"w", weight}});
    store.set_optimizer(optim::SGD{});
    for (int step = 0; step < 3; ++step) {
      const NDArray gradient = full(4, 1, engine);
      const bool fails = worker == 0 && step == 0;
      if (fails) fail(gradient);
      store.push_pull({{"w", gradient}}, {{"w", weight}}, 1);
      store.step_end();
      if (fails)
        EXPECT_THROW(weight.wait(), InvalidArgument);
      else
        weight.wait();
    }
    store.barrier();
  });
}

TEST(Gossip, SaysWhatItDoesNotTake) {
  const auto error = [](const std::string& mode, int servers = 0) {
    ClusterConfig config;
    config.servers = servers;
    return error_of_call([&] { check_gossip(Spec::parse(mode), config); });
  };
  EXPECT_EQ(error("gossip:steps=4,seed=1,transport=tcp"), "");
  EXPECT_NE(error("gossip:steps=0").find("expected at least 1"), std::string::npos);
  EXPECT_NE(error("gossip:alpha=1").find("alpha"), std::string::npos);
  EXPECT_NE(error("gossip", 2).find("mode gossip has no servers"), std::string::npos);
}

}  // namespace
}  // namespace paceline::test
