// Mode ring with workers that are lost and come back: everybody holds the same bits afterwards.
#include <gtest/gtest.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <random>

#include "allreduce/ring.h"
#include "checkpoint/slice_state.h"
#include "hand_made_worker.h"
#include "key_partition.h"
#include "parse_body.h"
#include "store.pb.h"
#include "workers.pb.h"

namespace paceline::test {
namespace {

using namespace std::chrono_literals;

constexpr int kWorkers = 3;
constexpr std::int64_t kLarge = 100000, kSmall = 3;  // doubles: two pieces and one

ClusterOptions ring_of(int workers, const char* transport, bool faulty) {
  return {.mode = "ring",
          .workers = workers,
          .servers = 0,
          .transport = transport,
          .faulty = faulty,
          .serial = false,
          .silence_seconds = 8};
}

// One life of a worker.
class Life {
 public:
  Life(ClusterInProcess& cluster, int worker, double momentum)
      : store_(cluster.worker(worker)), engine_(cluster.engine(worker)), worker_(worker) {
    large_ = full(kLarge, 0);
    small_ = full(kSmall, 0);
    store_.init({{.key = "large", .value = large_, .shared = true}, {"small", small_}});
    store_.set_optimizer(optim::SGD{.lr = 0.1, .momentum = momentum});
  }

  KVStore& store() { return store_; }
  void exchange_large(double gradient) {
    store_.push_pull({{"large", full(kLarge, gradient)}}, {{"large", large_}}, 1 + worker_);
  }
  void exchange_small(double gradient) {
    store_.push_pull({{"small", full(kSmall, gradient)}}, {{"small", small_}}, 1 + worker_);
  }
  void step(double gradient) {
    exchange_large(gradient);
    exchange_small(gradient);
    end_step();
  }
  void end_step() {
    store_.step_end();
    large_.wait();
    small_.wait();
  }
  std::vector<double> weights() {
    store_.barrier();
    store_.pull("large", large_);
    store_.pull("small", small_);
    std::vector<double> all = large_.to_vector<double>();
    for (const double weight : small_.to_vector<double>()) all.push_back(weight);
    store_.barrier();
    return all;
  }

 private:
  NDArray full(std::int64_t size, double value) {
    return NDArray::full(Shape{size}, value, DType::kFloat64, {}, engine_);
  }

  KVStore& store_;
  Engine& engine_;
  const int worker_;
  NDArray large_, small_;
};

struct Job {
  double momentum = 0.9;
  int workers = kWorkers;
  const char* transport = "inproc";
  bool faulty = false;
};

// All but worker 0 die and come back as they like, several times, also at once and with half a step pushed.
void lives_and_deaths(unsigned seed, const Job& job) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr int kDeaths = 2;
  std::atomic<int> back = 0;
  std::vector<std::vector<double>> weights(static_cast<std::size_t>(job.workers));
  ClusterInProcess cluster(ring_of(job.workers, job.transport, job.faulty));
  cluster.run([&](int worker, KVStore&) {
    std::minstd_rand random(seed * kWorkers + static_cast<unsigned>(worker));
    const auto gradient = [&] { return static_cast<double>(random()) / std::minstd_rand::max() - 0.5; };
    for (int deaths = worker == 0 ? kDeaths : 0;; ++deaths) {
      Life life(cluster, worker, job.momentum);
      if (deaths == kDeaths) {
        ++back;
        while (back < job.workers) life.step(gradient());
        for (int i = 0; i < 3; ++i) life.step(gradient());
        EXPECT_EQ(life.store().report().refused, 0);
        weights[static_cast<std::size_t>(worker)] = life.weights();
        return;
      }
      for (auto steps = random() % 4; steps > 0; --steps) life.step(gradient());
      if (random() % 2 > 0) life.exchange_large(gradient());
      cluster.kill_worker(worker);
      cluster.join_worker(worker);
    }
  });
  for (const auto& others : weights) {
    ASSERT_EQ(others.size(), static_cast<std::size_t>(kLarge + kSmall));
    EXPECT_TRUE(others == weights[0]);
  }
}

TEST(RingReturn, EverybodyHoldsTheSameBits) {
  for (const unsigned seed : {1, 2}) lives_and_deaths(seed, {});
}
TEST(RingReturn, EverybodyHoldsTheSameBitsUnderFaults) { lives_and_deaths(3, {.faulty = true}); }
TEST(RingReturn, EverybodyHoldsTheSameBitsWithoutState) { lives_and_deaths(4, {.momentum = 0}); }
// Two that share no memory send each other everything; a third that comes and goes changes who sums.
TEST(RingReturn, EverybodyHoldsTheSameBitsOverTheNetwork) {
  lives_and_deaths(5, {.transport = "tcp"});
  lives_and_deaths(6, {.momentum = 0, .workers = 2, .transport = "tcp"});
  lives_and_deaths(7, {.workers = 2, .transport = "tcp"});
}

// Worker 0 has pushed one key of its step, worker 2 none: the one that returns takes part in that round.
TEST(RingReturn, IntoARoundThatIsHalfDone) {
  constexpr int kBefore = 3;
  ClusterInProcess cluster(ring_of(kWorkers, "inproc", false));
  std::atomic<int> ready = 0;
  std::atomic<bool> returned = false;
  std::array<std::vector<double>, kWorkers> weights;
  cluster.run([&](int worker, KVStore&) {
    auto life = std::make_unique<Life>(cluster, worker, 0);
    for (int i = 0; i < kBefore; ++i) life->step(-10);
    if (worker == 0) life->exchange_large(-10 * 6);
    ++ready;
    while (ready < kWorkers) std::this_thread::sleep_for(1ms);
    if (worker == 1) {
      cluster.kill_worker(1);
      cluster.join_worker(1);
      life = std::make_unique<Life>(cluster, worker, 0);
      returned = true;
    }
    while (!returned) std::this_thread::sleep_for(1ms);
    if (worker != 0) life->exchange_large(-10 * 6);
    life->exchange_small(-10 * 6.0 * (worker == 1));
    life->end_step();
    weights[static_cast<std::size_t>(worker)] = life->weights();
  });
  for (const auto& all : weights) {
    EXPECT_TRUE(all == weights[0]);
    EXPECT_NEAR(all.front(), kBefore + 6, 1e-12);
    EXPECT_NEAR(all.back(), kBefore + 6 * 2 / 6.0, 1e-12);  // examples are 1, 2 and 3
  }
}

// Keys of two inits, pushed together; worker 0 stands at a barrier a round ahead of worker 2.
TEST(RingReturn, WithKeysOfSeveralInits) {
  ClusterInProcess cluster(ring_of(kWorkers, "inproc", false));
  std::atomic<int> ready = 0;
  std::atomic<bool> joined = false;
  std::array<std::vector<double>, kWorkers> weights;
  cluster.run([&](int worker, KVStore&) {
    Engine& engine = cluster.engine(worker);
    const auto full = [&](double value) { return NDArray::full(Shape{kLarge}, value, DType::kFloat64, {}, engine); };
    std::array<NDArray, 2> arrays;
    const auto begin = [&](KVStore& store) {
      for (const char* name : {"a", "b"}) {
        NDArray& array = arrays[static_cast<std::size_t>(*name - 'a')];
        array = full(0);
        store.init({{name, array}});
        if (*name == 'a') store.barrier();
      }
      store.set_optimizer(optim::SGD{.lr = 1, .momentum = 0.5});
    };
    const auto step = [&](KVStore& store) {
      store.push_pull({{"a", full(-1)}, {"b", full(-2)}}, {{"a", arrays[0]}, {"b", arrays[1]}});
      store.step_end();
    };
    begin(cluster.worker(worker));
    for (int i = 0; i < 2; ++i) step(cluster.worker(worker));
    for (const NDArray& array : arrays) array.wait();
    ++ready;
    if (worker == 1) {
      while (ready < kWorkers) std::this_thread::sleep_for(1ms);
      cluster.kill_worker(1);
      cluster.join_worker(1);
      joined = true;
      begin(cluster.worker(1));
    }
    KVStore& store = cluster.worker(worker);
    for (int i = 0; i < worker; ++i) step(store);
    // Without worker 1 the others would pass the barrier.
    while (worker == 2 && !joined) std::this_thread::sleep_for(1ms);
    store.barrier();
    store.pull("a", arrays[0]);
    store.pull("b", arrays[1]);
    auto& mine = weights[static_cast<std::size_t>(worker)];
    for (const NDArray& array : arrays)
      for (const double weight : array.to_vector<double>()) mine.push_back(weight);
    store.barrier();
  });
  for (const auto& all : weights) EXPECT_TRUE(all == weights[0]);
  EXPECT_GE(weights[0].front(), 1 + 1.5 + 1.75 + 1.875);
  EXPECT_EQ(weights[0].back(), 2 * weights[0].front());
}

// Worker 1 is to send the values in the place of worker 0, which was lost, and says before it hears of that that it
// waits for worker 0's: its own are not there yet.
TEST(RingReturn, WhoWaitsForALostSenderHasNotSentItself) {
  ClusterConfig config = job_config("inproc", 0, 2);
  config.silence_deadline_seconds = 20;
  const EndedFile ended(&config);
  SchedulerThread scheduler(config);
  std::array<std::unique_ptr<Node>, 2> nodes;
  std::array<std::thread, 2> threads;
  wire::InitRequest declaration;
  declaration.set_call(1);
  declaration.set_mode("ring");
  write_key({"w", DType::kFloat64, Shape{2}, false}, declaration.add_keys());
  const auto ask = [&](int worker, const wire::InitRequest& request) {
    wire::InitReply reply;
    EXPECT_TRUE(reply.ParseFromString(
        test::ask(*nodes[static_cast<std::size_t>(worker)], MessageKind::kInit, request.SerializeAsString()).body));
    return reply;
  };
  for (int worker : {0, 1})
    threads[static_cast<std::size_t>(worker)] = std::thread([&, worker] {
      auto& node = nodes[static_cast<std::size_t>(worker)];
      node = std::make_unique<Node>(member(config, Role::kWorker, 0, worker), Node::Handlers{});
      node->join();
      EXPECT_EQ(ask(worker, declaration).sender(), 0);
    });
  for (std::thread& thread : threads) thread.join();
  nodes[0].reset();
  ended.add_killed(0);
  while (nodes[1]->roster().live(Role::kWorker).size() > 1) std::this_thread::sleep_for(1ms);
  wire::InitRequest values;
  values.set_call(1);
  values.set_values(true);
  values.set_sender(0);
  wire::InitReply reply = ask(1, values);
  EXPECT_FALSE(reply.done());
  EXPECT_EQ(reply.sender(), 1);
  values.set_sender(1);
  EXPECT_TRUE(ask(1, values).done());
  nodes[1]->leave();
  EXPECT_EQ(scheduler.result(), "");
}

// Worker 0 says that it has the values and dies before anybody could fetch them: the next one's count.
TEST(RingReturn, TheSenderOfAnInitDies) {
  ClusterConfig config = job_config("inproc", 0, kWorkers);
  config.silence_deadline_seconds = 20;
  const EndedFile ended(&config);
  SchedulerThread scheduler(config);
  std::array<std::thread, kWorkers> threads;
  threads[0] = std::thread([&] {
    auto node = std::make_unique<Node>(member(config, Role::kWorker, 0, 0), Node::Handlers{});
    node->join();
    wire::InitRequest request;
    request.set_call(1);
    request.set_mode("ring");
    write_key({"w", DType::kFloat64, Shape{2}, false}, request.add_keys());
    const auto ask = [&] {
      Message message;
      message.header.kind = MessageKind::kInit;
      message.body = request.SerializeAsString();
      node->ask_and_wait({Role::kScheduler, 0}, message);
    };
    ask();
    request.set_values(true);
    ask();
    node.reset();
    ended.add_killed(0);
  });
  for (int worker = 1; worker < kWorkers; ++worker)
    threads[static_cast<std::size_t>(worker)] = std::thread([&, worker] {
      const auto engine = make_threaded_engine();
      StoreOptions options;
      options.engine = engine.get();
      const auto ring = make_ring_backend(member(config, Role::kWorker, 0, worker), Spec::parse("ring"), options);
      const NDArray weight = NDArray::full(Shape{2}, worker, DType::kFloat64, {}, *engine);
      ring->init({{"w", weight}});
      EXPECT_EQ(weight.to_vector<double>(), (std::vector<double>{1, 1}));
      ring->finish();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(scheduler.result(), "");
}

// A push to the earlier life of a worker reaches its next one, which is not in the ring yet. The call that the push is
// of ends only when it is answered.
TEST(RingReturn, APushToAnEarlierLifeIsAnsweredBeforeTheNextOneEnters) {
  ClusterConfig config = job_config("inproc", 0, 2);
  const EndedFile ended(&config);
  SchedulerThread scheduler(config);
  std::promise<wire::RingTaken> answered;
  std::array<std::unique_ptr<Node>, 2> nodes;
  {
    std::array<std::jthread, 2> joining;
    for (std::size_t worker : {0, 1}) {
      nodes[worker] =
          std::make_unique<Node>(member(config, Role::kWorker, 0, static_cast<int>(worker)),
                                 Node::Handlers{[](const Request& request) { request.reply({}); }, nullptr});
      joining[worker] = std::jthread([&node = *nodes[worker]] { node.join(); });
    }
  }
  nodes[1].reset();
  ended.add_killed(1);
  const auto engine = make_threaded_engine();
  StoreOptions options;
  options.engine = engine.get();
  auto ring = make_ring_backend(member(config, Role::kWorker, 0, 1), Spec::parse("ring"), options);
  const auto knows = [](const Node& node) {
    const Roster roster = node.roster();
    const Peer* const peer = roster.find({Role::kWorker, 1});
    return peer->alive && !peer->entered;
  };
  while (!knows(*nodes[0])) std::this_thread::sleep_for(1ms);
  wire::RingPush push;
  push.set_generation(1);
  nodes[0]->ask({Role::kWorker, 1}, message_of(MessageKind::kRingPush, push),
                [&](const std::optional<Message>& answer, const std::exception_ptr& error) {
                  try {
                    if (error) std::rethrow_exception(error);
                    answered.set_value(parse_body<wire::RingTaken>(*answer));
                  } catch (const std::exception&) {
                    answered.set_exception(std::current_exception());
                  }
                });
  std::future<wire::RingTaken> answer = answered.get_future();
  const bool in_time = answer.wait_for(20s) == std::future_status::ready;
  EXPECT_TRUE(in_time);
  if (in_time) {
    EXPECT_TRUE(answer.get().stale());
  }
  ring.reset();
  nodes[0]->leave();
  EXPECT_EQ(scheduler.result(), "");
}

// Worker 0 stands for two: one has told of new rules when the other, which has not heard of them, sends its state.
TEST(RingReturn, StateOfOlderRulesBeginsAnew) {
  const ClusterConfig config = job_config("inproc", 0, 2);
  SchedulerThread scheduler(config);
  std::thread fetching([&] {
    const auto engine = make_threaded_engine();
    StoreOptions options;
    options.engine = engine.get();
    const auto ring = make_ring_backend(member(config, Role::kWorker, 0, 1), Spec::parse("ring"), options);
    const NDArray weight = NDArray::full(Shape{2}, 0, DType::kFloat64, {}, *engine);
    EXPECT_EQ(error_of_call([&] { ring->init({{"w", weight}}); }), "");
    EXPECT_EQ(weight.to_vector<double>(), (std::vector<double>{5, 5}));
    ring->finish();
  });
  const Spec older = optim::SGD{.lr = 1, .momentum = 0.5}, newer = optim::SGD{.lr = 1};
  const std::array<double, 2> weights{6, 6}, gradient{1, 1};
  const auto updater = make_updater();
  updater->set_rules(older, "none", {});
  updater->add_slice({"w", 0, 2, DType::kFloat64}, weights.data());
  updater->apply(0, {0, 0, 1, gradient.data()});
  const auto rules = [](std::uint32_t call, const Spec& optimizer) {
    wire::RingRules rules;
    rules.set_optimizer_call(call);
    rules.set_optimizer(optimizer.text());
    rules.set_rate(1);
    return rules;
  };
  const PeerId other{Role::kWorker, 1};
  Node node(member(config, Role::kWorker, 0, 0),
            {[&](const Request& request) {
               if (request.message().header.kind != MessageKind::kRingAsk) return request.reply({});
               wire::RingTell tell;
               tell.set_generation(1);
               *tell.mutable_rules() = rules(2, newer);
               node.ask(other, message_of(MessageKind::kRingTell, tell),
                        [&, request](const std::optional<Message>&, const std::exception_ptr&) {
                          wire::WorkerSlices slices;
                          *slices.mutable_rules() = rules(1, older);
                          PayloadWriter payload;
                          write_slice(*updater, 0, true, slices.add_slices(), &payload);
                          EXPECT_EQ(slices.slices(0).names_size(), 2);
                          request.reply(message_of(MessageKind::kReply, slices, payload.finish()));
                        });
             },
             nullptr});
  node.join();
  wire::InitRequest init;
  init.set_call(1);
  init.set_mode("ring");
  write_key({"w", DType::kFloat64, Shape{2}, false}, init.add_keys());
  test::ask(node, MessageKind::kInit, init.SerializeAsString());
  init.clear_keys();
  init.set_values(true);
  test::ask(node, MessageKind::kInit, init.SerializeAsString());
  // Worker 1 answers when it has loaded its piece.
  wire::RingAsk fetch;
  fetch.set_what(wire::RingAsk::FETCH);
  fetch.add_pieces(0);
  wire::WorkerSlices loaded;
  EXPECT_EQ(error_of_call([&] {
              loaded =
                  parse_body<wire::WorkerSlices>(node.ask_and_wait(other, message_of(MessageKind::kRingAsk, fetch)));
            }),
            "");
  EXPECT_EQ(loaded.rules().optimizer(), newer.text());
  EXPECT_EQ(loaded.slices_size(), 1);
  for (const auto& slice : loaded.slices()) {
    EXPECT_EQ(slice.version(), 1U);
    EXPECT_EQ(slice.names_size(), 1);
    EXPECT_EQ(slice.optimizer_updates(), 0);
  }
  init.set_values(false);
  init.set_held(true);
  test::ask(node, MessageKind::kInit, init.SerializeAsString());
  node.leave();
  fetching.join();
  EXPECT_EQ(scheduler.result(), "");
}

// Workers 0 and 1 are two while worker 2 is away, and its return ends that. Worker 1 hears of the return late, so it
// still takes a gradient that worker 0 sent before. Worker 0 may write its array only then. A machine that holds worker
// 2 up for half a second at its return makes the test prove nothing.
TEST(RingReturn, AGradientStaysUntilATwinThatHearsLateOfTheReturnHasIt) {
  constexpr std::int64_t kElements = 300000;  // doubles
  ClusterOptions options = ring_of(kWorkers, "tcp", false);
  // A step of two ends when both have heard of the loss, so the cut begins after that: step 4 is their second.
  options.faults =
      "throttle 4MB/s worker0->worker1 of ring_push\n"
      "cut scheduler->worker1 of roster at step 4 for 6s\n";
  options.silence_seconds = 20;
  ClusterInProcess cluster(options);
  std::atomic<int> steps = 0;  // of worker 0, without worker 2
  std::atomic<bool> back = false;
  std::array<std::vector<double>, kWorkers> weights;
  cluster.run([&](int worker, KVStore&) {
    Engine& engine = cluster.engine(worker);
    NDArray weight, gradient = NDArray::zeros({kElements}, DType::kFloat64, {}, engine);
    const auto begin = [&] {
      weight = NDArray::zeros({kElements}, DType::kFloat64, {}, engine);
      cluster.worker(worker).init({{"x", weight}});
      cluster.worker(worker).set_optimizer(optim::SGD{.lr = 0.001});
    };
    const auto step = [&] {
      gradient.fill(1);
      cluster.worker(worker).push_pull({{"x", gradient}}, {{"x", weight}}, 1);
      cluster.worker(worker).step_end();
      gradient.fill(1e6);
      weight.wait();
      if (worker == 0) std::this_thread::sleep_for(400ms);
    };
    begin();
    step();
    step();
    if (worker == 2) {
      cluster.kill_worker(2);
      while (steps < 3) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(150ms);  // the next gradient is on the line, which takes 600 ms for it
      cluster.join_worker(2);
      begin();
      step();
      step();
      back = true;
    }
    while (!back) {
      step();
      if (worker == 0) ++steps;
    }
    KVStore& store = cluster.worker(worker);
    store.barrier();
    store.pull("x", weight);
    weights[static_cast<std::size_t>(worker)] = weight.to_vector<double>();
    store.barrier();
  });
  for (const auto& mine : weights) {
    EXPECT_TRUE(mine == weights[0]);
    EXPECT_GT(*std::min_element(mine.begin(), mine.end()), -100);
  }
}

}  // namespace
}  // namespace paceline::test
