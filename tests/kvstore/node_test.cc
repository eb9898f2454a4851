#include "node.h"

#include <gmock/gmock.h>
#include <message.pb.h>
#include <support/soon.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <mutex>

#include "cluster_in_process.h"
#include "relay.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using test::EndedFile;
using test::error_of_call;
using test::job_config;
using test::member;
using test::SchedulerThread;
using test::soon;
using testing::HasSubstr;

struct Network {
  std::string transport;
  bool faulty = false;
};
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest finds it by this name
void PrintTo(const Network& network, std::ostream* out) {
  *out << network.transport << (network.faulty ? "_faulty" : "");
}

class Nodes : public testing::TestWithParam<Network> {
 protected:
  ClusterConfig config(int servers, int workers) {
    return job_config(GetParam().transport, servers, workers, GetParam().faulty);
  }
  // Whose silence is waited for.
  ClusterConfig soon_silent(int servers, int workers) {
    ClusterConfig job = config(servers, workers);
    job.silence_deadline_seconds = 3;
    return job;
  }
};

INSTANTIATE_TEST_SUITE_P(Every, Nodes,
                         testing::Values(Network{"inproc"}, Network{"inproc", true}, Network{"tcp"},
                                         Network{"tcp", true}),
                         testing::PrintToStringParamName());

Message text_message(const std::string& text, const std::string& payload = "") {
  Message message;
  message.header.kind = MessageKind::kPushPull;
  message.body = text;
  if (!payload.empty()) message.payload.push_back(Frame::of(payload));
  return message;
}

// Servers that answer "rank: body" with the payload, once per request.
struct EchoServer {
  EchoServer(const ClusterConfig& config)
      : node(config, {[this](const Request& request) { answer(request); },
                      [this](const Roster& roster) { over = roster.over; }}),
        thread([this] {
          try {
            node.join();
            while (!over && !node.failure()) std::this_thread::sleep_for(1ms);
            if (node.failure()) std::rethrow_exception(node.failure());
            if (!left) node.leave();
          } catch (const std::exception& error) {
            failure = error.what();
          }
        }) {}
  ~EchoServer() {
    if (thread.joinable()) thread.join();
  }
  void answer(const Request& request) {
    ++requests;
    if (request.message().body == "refuse") throw InvalidArgument("it is refused");
    if (request.message().body == "forget") return;
    Message message;
    message.body = std::to_string(node.rank()) + ": " + request.message().body;
    message.payload = request.message().payload;
    request.reply(std::move(message));
  }

  std::atomic<int> requests = 0;
  std::atomic<bool> over = false, left = false;
  std::string failure;
  Node node;
  std::thread thread;
};

TEST_P(Nodes, join_ask_and_leave) {
  const ClusterConfig job = config(2, 3);
  SchedulerThread scheduler(job);
  EchoServer server1(member(job, Role::kServer, scheduler.port(), 1)),
      server0(member(job, Role::kServer, scheduler.port(), 0));
  std::vector<std::thread> workers;
  std::latch looked(3);  // nobody leaves before
  for (int i = 0; i < 3; ++i)
    workers.emplace_back([&, i] {
      Node node(member(job, Role::kWorker, scheduler.port(), i), {});
      node.join();
      EXPECT_EQ(node.rank(), i);
      EXPECT_EQ(node.roster().live(Role::kServer), (std::vector<int>{0, 1}));
      EXPECT_EQ(node.roster().live(Role::kWorker), (std::vector<int>{0, 1, 2}));
      looked.arrive_and_wait();
      for (int round = 0; round < 20; ++round) {
        const int rank = round % 2;
        const std::string payload(round * 3000, 'x');
        const Message answer = node.ask_and_wait({Role::kServer, rank}, text_message("hello", payload));
        EXPECT_EQ(answer.body, std::to_string(rank) + ": hello");
        ASSERT_EQ(answer.payload.size(), round > 0 ? 1u : 0u);
        if (round > 0) {
          EXPECT_EQ(answer.payload[0].size, payload.size());
        }
      }
      EXPECT_EQ(error_of_call([&] { node.ask_and_wait({Role::kServer, 0}, text_message("refuse")); }), "it is refused");
      EXPECT_THROW(node.ask_and_wait({Role::kServer, 0}, text_message("refuse")), InvalidArgument);
      EXPECT_EQ(error_of_call([&] {
                  node.ask_and_wait({Role::kServer, 0}, text_message("forget"));
                }),
                "push_pull was dropped unanswered");
      EXPECT_THAT(error_of_call([&] {
                    node.ask_and_wait({Role::kServer, 7}, text_message("x"));
                  }),
                  HasSubstr("no server 7"));
      node.leave();
    });
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(scheduler.result(), "");
  server0.thread.join();
  server1.thread.join();
  EXPECT_EQ(server0.failure, "");
  EXPECT_EQ(server0.node.rank(), 0);
  EXPECT_EQ(server1.node.rank(), 1);
}

// A worker that only joins; destroyed without leave() it looks like a crash.
std::unique_ptr<Node> joining(const ClusterConfig& config, std::thread& thread) {
  auto node = std::make_unique<Node>(config, Node::Handlers{});
  thread = std::thread([to = node.get()] { to->join(); });
  return node;
}

std::vector<std::unique_ptr<Node>> joined_workers(const ClusterConfig& job, int port) {
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::thread> threads(job.workers);
  for (int i = 0; i < job.workers; ++i) nodes.push_back(joining(member(job, Role::kWorker, port, i), threads[i]));
  for (std::thread& thread : threads) thread.join();
  return nodes;
}

Message barrier(std::uint64_t number) {
  proto::Barrier body;
  body.set_number(number);
  Message message;
  message.header.kind = MessageKind::kBarrier;
  message.body = body.SerializeAsString();
  return message;
}
constexpr PeerId kScheduler{Role::kScheduler, 0};

TEST_P(Nodes, every_request_is_answered_once_under_load) {
  const ClusterConfig job = config(1, 2);
  SchedulerThread scheduler(job);
  EchoServer server(member(job, Role::kServer, scheduler.port()));
  auto workers = joined_workers(job, scheduler.port());
  constexpr int kAsks = 200;
  std::atomic<int> answered = 0, wrong = 0;
  std::vector<std::atomic<int>> times(2 * kAsks);
  for (int i = 0; i < kAsks; ++i)
    for (int w = 0; w < 2; ++w)
      workers[w]->ask({Role::kServer, 0}, text_message(std::to_string(i), std::string(i * 100, 'x')),
                      [&, i, w](std::optional<Message> answer, const std::exception_ptr& error) {
                        if (error || answer->body != "0: " + std::to_string(i)) ++wrong;
                        ++times[2 * i + w];
                        ++answered;
                      });
  EXPECT_TRUE(soon([&] { return answered == 2 * kAsks; })) << answered;
  EXPECT_EQ(wrong, 0);
  for (const auto& count : times) EXPECT_EQ(count, 1);
  for (auto& worker : workers) worker->leave();
  workers.clear();
  EXPECT_EQ(scheduler.result(), "");
}

TEST_P(Nodes, a_request_that_waits_is_delivered_once) {
  const ClusterConfig job = config(1, 1);
  SchedulerThread scheduler(job);
  std::vector<Request> held;
  std::mutex mutex;
  std::atomic<bool> over = false;
  Node server(member(job, Role::kServer, scheduler.port()), {[&](const Request& request) {
                                                               const std::lock_guard lock(mutex);
                                                               held.push_back(request);
                                                             },
                                                             [&](const Roster& roster) { over = roster.over; }});
  std::thread thread([&] { server.join(); });
  std::atomic<int> answers = 0;
  auto workers = joined_workers(job, scheduler.port());
  thread.join();
  workers[0]->ask({Role::kServer, 0}, text_message("small"), [&](const auto&, const auto&) { ++answers; });
  workers[0]->ask({Role::kServer, 0}, text_message("large", std::string(1 << 20, 'x')),
                  [&](const auto&, const auto&) { ++answers; });
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(answers, 0);
  ASSERT_TRUE(soon([&] {
    const std::lock_guard lock(mutex);
    return held.size() >= 2;
  }));
  {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(held.size(), 2u);
    held[0].reply({});
    held.clear();  // the other one is refused
  }
  EXPECT_TRUE(soon([&] { return answers == 2; }));
  workers[0]->leave();
  EXPECT_TRUE(soon([&] { return over.load(); }));
  server.leave();
  EXPECT_EQ(scheduler.result(), "");
}

TEST_P(Nodes, a_barrier_counts_workers_not_requests) {
  const ClusterConfig job = config(0, 3);
  SchedulerThread scheduler(job);
  auto workers = joined_workers(job, scheduler.port());
  std::atomic<int> passed = 0;
  const auto pass = [&](const auto&, const auto&) { ++passed; };
  workers[0]->ask(kScheduler, barrier(1), pass);
  workers[0]->ask(kScheduler, barrier(1), pass);
  workers[1]->ask(kScheduler, barrier(1), pass);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(passed, 0);
  workers[2]->ask(kScheduler, barrier(1), pass);
  EXPECT_TRUE(soon([&] { return passed == 4; }));
  for (std::uint64_t number = 2; number < 12; ++number) {
    std::vector<std::thread> threads;
    for (auto& worker : workers) threads.emplace_back([&] { worker->ask_and_wait(kScheduler, barrier(number)); });
    for (std::thread& thread : threads) thread.join();
  }
  for (auto& worker : workers) worker->leave();
  workers.clear();
  EXPECT_EQ(scheduler.result(), "");
}

TEST_P(Nodes, a_lost_worker_is_named_and_the_rest_go_on) {
  const ClusterConfig job = soon_silent(0, 3);
  SchedulerThread scheduler(job);
  auto workers = joined_workers(job, scheduler.port());
  std::atomic<int> passed = 0;
  workers[0]->ask(kScheduler, barrier(1), [&](const auto&, const auto& error) { passed += !error; });
  workers[2]->ask(kScheduler, barrier(1), [&](const auto&, const auto& error) { passed += !error; });
  workers[1].reset();
  EXPECT_TRUE(soon([&] { return passed == 2; }));
  // The answer to the barrier may overtake the news.
  for (const int i : {0, 2})
    EXPECT_TRUE(soon([&] { return workers[i]->roster().live(Role::kWorker) == std::vector<int>{0, 2}; }));
  const Roster roster = workers[2]->roster();
  EXPECT_FALSE(roster.find({Role::kWorker, 1})->finished);
  EXPECT_EQ(workers[0]->failure(), nullptr);

  // Its place may be taken, under a new incarnation.
  const std::uint64_t old = roster.find({Role::kWorker, 1})->incarnation;
  std::thread thread;
  workers[1] = joining(member(job, Role::kWorker, scheduler.port()), thread);
  thread.join();
  EXPECT_EQ(workers[1]->rank(), 1);
  EXPECT_GT(workers[1]->incarnation(), old);
  EXPECT_TRUE(soon([&] { return workers[0]->roster().live(Role::kWorker).size() == 3; }));
  for (auto& worker : workers) worker->leave();
  workers.clear();
  EXPECT_EQ(scheduler.result(), "");
}

// Their silence is not waited for; and who has taken the place of one that failed is another process.
TEST_P(Nodes, a_process_whose_end_the_launcher_tells_is_lost_at_once) {
  ClusterConfig job = config(0, 3);
  job.silence_deadline_seconds = 90;  // longer than soon() waits
  const EndedFile ended(&job);
  SchedulerThread scheduler(job);
  auto workers = joined_workers(job, scheduler.port());
  const auto live = [&] { return workers[0]->roster().live(Role::kWorker); };
  workers[1].reset();
  ended.add("nobody knows what this is\nworker 7 was ended by signal 9\nworker 1 was");
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(live().size(), 3);
  // Said until it is heard: a scheduler that was slow to start takes what it finds for news of an earlier job.
  ended.add(" ended by signal 9\n");
  EXPECT_TRUE(soon([&] {
    ended.add_killed(1);
    return live() == std::vector<int>{0, 2};
  }));

  std::thread thread;
  workers[1] = joining(member(job, Role::kWorker, scheduler.port(), 1), thread);
  thread.join();
  ended.add("worker 1 was ended by signal 9\nworker 2 ended with exit code 1\n");
  EXPECT_TRUE(soon([&] { return live() == std::vector<int>{0, 1}; }));
  EXPECT_THAT(error_of_call([&] { workers[2]->ask_and_wait(kScheduler, barrier(1)); }), HasSubstr("declared lost"));
  for (const int i : {0, 1}) workers[i]->leave();
  workers.clear();
  EXPECT_EQ(scheduler.result(), "");
}

// A program may end well without having left the job. The launcher learns which did.
TEST_P(Nodes, the_scheduler_tells_the_launcher_who_was_lost) {
  ClusterConfig job = config(0, 3);
  job.silence_deadline_seconds = 90;  // longer than soon() waits
  const EndedFile ended(&job);
  job.lost_file = job.ended_file + "-lost";
  SchedulerThread scheduler(job);
  auto workers = joined_workers(job, scheduler.port());
  workers[2]->leave();
  workers[1].reset();
  EXPECT_TRUE(soon([&] {
    for (const int i : {1, 2})
      ended.add("worker " + std::to_string(i) + " ended with exit code 0 without leaving the job\n");
    return workers[0]->roster().live(Role::kWorker) == std::vector<int>{0};
  }));
  workers[0]->leave();
  workers.clear();
  EXPECT_EQ(scheduler.result(), "");
  std::ifstream lost(job.lost_file);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(lost), {}), "worker 1\n");
  std::filesystem::remove(job.lost_file);
}

TEST_P(Nodes, a_lost_worker_that_could_not_be_written_down_is_written_later) {
  ClusterConfig job = config(0, 3);
  job.silence_deadline_seconds = 90;  // longer than soon() waits
  const EndedFile ended(&job);
  const std::string folder = job.ended_file + "-folder";
  job.lost_file = folder + "/lost";
  SchedulerThread scheduler(job);
  auto workers = joined_workers(job, scheduler.port());
  const auto lose = [&](int worker, const std::vector<int>& left) {
    workers[static_cast<std::size_t>(worker)].reset();
    EXPECT_TRUE(soon([&] {
      ended.add_killed(worker);
      return workers[0]->roster().live(Role::kWorker) == left;
    }));
  };
  lose(1, {0, 2});
  // The scheduler answers when it has handled the roster, and so has tried to write.
  EXPECT_NE(error_of_call([&] { workers[0]->ask_and_wait(kScheduler, text_message("x")); }), "");
  std::filesystem::create_directory(folder);
  lose(2, {0});
  workers[0]->leave();
  workers.clear();
  EXPECT_EQ(scheduler.result(), "");
  std::ifstream lost(job.lost_file);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(lost), {}), "worker 1\nworker 2\n");
  std::filesystem::remove_all(folder);
}

TEST_P(Nodes, who_joined_in_the_place_of_one_that_failed_before_the_start_stays) {
  ClusterConfig job = config(0, 3);
  job.silence_deadline_seconds = 90;  // longer than soon() waits
  const EndedFile ended(&job);
  ended.add("worker 1 ended with exit code 1\n");
  SchedulerThread scheduler(job);
  auto workers = joined_workers(job, scheduler.port());
  std::this_thread::sleep_for(300ms);
  EXPECT_TRUE(soon([&] {
    ended.add_killed(2);
    return workers[0]->roster().live(Role::kWorker) == std::vector<int>{0, 1};
  }));
  for (const int i : {0, 1}) workers[i]->leave();
  workers.clear();
  EXPECT_EQ(scheduler.result(), "");
}

TEST_P(Nodes, a_lost_server_fails_the_job_everywhere) {
  const ClusterConfig job = soon_silent(2, 2);
  SchedulerThread scheduler(job);
  EchoServer stays(member(job, Role::kServer, scheduler.port(), 0));
  auto crashes = std::make_unique<EchoServer>(member(job, Role::kServer, scheduler.port(), 1));
  auto workers = joined_workers(job, scheduler.port());
  EXPECT_EQ(workers[0]->ask_and_wait({Role::kServer, 1}, text_message("x")).body, "1: x");
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { errors[0] = error_of_call([&] { workers[0]->ask_and_wait(kScheduler, barrier(1)); }); });
  crashes->left = true;  // first: else its thread takes leave
  crashes->over = true;  // lets the thread go
  crashes.reset();
  threads.emplace_back([&] {
    errors[1] = error_of_call([&] {
      for (;;) workers[1]->ask_and_wait({Role::kServer, 1}, text_message("anybody?"));
    });
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors[0], HasSubstr("server 1 at"));
  EXPECT_THAT(errors[0], HasSubstr("was lost"));
  EXPECT_THAT(errors[1], HasSubstr("server 1 at"));
  EXPECT_THAT(error_of_call([&] { std::rethrow_exception(workers[0]->failure()); }), HasSubstr("server 1 at"));
  EXPECT_THAT(scheduler.result(), HasSubstr("server 1 at"));
  stays.thread.join();
  EXPECT_THAT(stays.failure, HasSubstr("server 1 at"));
}

TEST_P(Nodes, a_lost_scheduler_is_noticed) {
  const ClusterConfig job = soon_silent(0, 1);
  auto scheduler = std::make_unique<Node>(
      [&] {
        ClusterConfig config = job;
        config.role = Role::kScheduler;
        return config;
      }(),
      Node::Handlers{});
  const std::string address = scheduler->scheduler_address();
  const int port = job.transport != "inproc" ? std::stoi(address.substr(address.rfind(':') + 1)) : 0;
  std::thread thread([&] { scheduler->join(); });
  auto workers = joined_workers(job, port);
  thread.join();
  scheduler.reset();
  EXPECT_THAT(error_of_call([&] { workers[0]->ask_and_wait(kScheduler, barrier(1)); }), HasSubstr("the scheduler at"));
}

// A program may catch what its calls throw, and live on: the others must not wait for it.
TEST(Node, WhoGivesTheSchedulerUpIsLostToTheOthersThoughItsProcessLives) {
  ClusterConfig job = job_config("inproc", 0, 2);
  job.silence_deadline_seconds = 3;
  job.role = Role::kScheduler;
  std::atomic<bool> released = false;
  const auto work = [&](const Request& request) {
    while (!released) std::this_thread::sleep_for(1ms);  // meanwhile the scheduler hears nobody, and nobody hears it
    request.reply({});
  };
  Node scheduler(job, Node::Handlers{work, {}});
  std::thread join([&] { scheduler.join(); });
  auto workers = joined_workers(job, 0);
  join.join();
  EXPECT_THAT(error_of_call([&] { workers[0]->ask_and_wait(kScheduler, barrier(1)); }), HasSubstr("was lost: nothing"));
  EXPECT_TRUE(soon([&] { return workers[1]->failure() != nullptr; }));
  released = true;
  EXPECT_TRUE(soon([&] { return scheduler.failure() != nullptr; }));
  EXPECT_THAT(error_of_call([&] { std::rethrow_exception(scheduler.failure()); }), HasSubstr("every worker was lost"));
}

TEST(Node, WhoWorksLongerThanTheDeadlineIsNotSilentAndCallsNobodySilent) {
  ClusterConfig job = job_config("inproc", 1, 1);
  job.silence_deadline_seconds = 3;
  SchedulerThread scheduler(job);
  std::unique_ptr<Node> server;
  const auto work = [&](const Request& request) {
    std::this_thread::sleep_for(4s);
    request.reply({});
  };
  server = std::make_unique<Node>(member(job, Role::kServer, scheduler.port()), Node::Handlers{work, {}});
  std::thread join([&] { server->join(); });
  auto workers = joined_workers(job, scheduler.port());
  join.join();
  EXPECT_EQ(error_of_call([&] { workers[0]->ask_and_wait({Role::kServer, 0}, text_message("work")); }), "");
  EXPECT_EQ(server->failure(), nullptr);
  workers[0]->leave();
  server->leave();
  EXPECT_EQ(scheduler.result(), "");
}

TEST(Node, AHandlerUsesTheNodeThatCloses) {
  const ClusterConfig job = job_config("inproc", 1, 1);
  SchedulerThread scheduler(job);
  std::unique_ptr<Node> server;
  std::atomic<bool> entered = false, closing = false, used = false;
  const auto on_request = [&](const Request& request) {
    entered = true;
    while (!closing) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);  // within close()
    server->reached(7);
    used = server->rank() == 0;
    request.reply({});
  };
  server = std::make_unique<Node>(member(job, Role::kServer, scheduler.port()), Node::Handlers{on_request, {}});
  std::thread join([&] { server->join(); });
  auto workers = joined_workers(job, scheduler.port());
  join.join();
  workers[0]->ask({Role::kServer, 0}, text_message("work"), [](const auto&, const auto&) {});
  while (!entered) std::this_thread::sleep_for(1ms);
  closing = true;
  server->close();
  EXPECT_TRUE(used);

  server->close();
  server->reached(8);
  EXPECT_EQ(server->rank(), 0);
  EXPECT_EQ(error_of_call([&] {
              server->ask_and_wait({Role::kScheduler, 0}, text_message("late"));
            }),
            "this process has left the job");
  server->ask({Role::kScheduler, 0}, text_message("late"), [](const auto&, const auto&) { FAIL(); });
  workers[0]->leave();
}

// Resolving a name takes as long as the resolver takes: that holds up no heartbeat.
bool connects(const char* host, int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = test::address_of(host, port);
  const bool connected = connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(descriptor);
  return connected;
}

TEST(Node, ListensAtNoOtherAddressThanItsNumericHost) {
  ClusterConfig config = job_config("tcp", 0, 1);
  config.scheduler_host = "127.0.0.1";
  SchedulerThread scheduler(config);
  EXPECT_TRUE(connects("127.0.0.1", scheduler.port()));
  EXPECT_FALSE(connects("127.0.0.2", scheduler.port()));
  Node worker(member(config, Role::kWorker, scheduler.port()), {});
  worker.join();
  worker.leave();
}

TEST(Node, WhoIsSlowToConnectIsNotSilent) {
  ClusterConfig job = job_config("inproc", 1, 1);
  job.silence_deadline_seconds = 3;
  SchedulerThread scheduler(job);
  EchoServer server(member(job, Role::kServer, 0));
  ClusterConfig slow = member(job, Role::kWorker, 0);
  slow.faults = "slow_connect 4s from step 1";  // not to the scheduler
  Node worker(slow, {});
  worker.join();
  worker.reached(1);
  EXPECT_EQ(error_of_call([&] { worker.ask_and_wait({Role::kServer, 0}, text_message("hello")); }), "");
  worker.leave();
  server.thread.join();
  EXPECT_EQ(scheduler.result(), "");
}

// A worker asks again while an answer is on a slow line. A second answer would delay everything behind it.
TEST(Node, AnAnswerOnASlowLineIsMadeOnce) {
  for (const auto& [transport, secret] :
       {std::pair{"inproc", ""}, {"tcp", ""}, {"tcp", "0123456789abcdef0123456789abcdef"}}) {
    SCOPED_TRACE(str(transport, secret));
    ClusterConfig job = job_config(transport, 1, 1);
    job.secret = secret;
    SchedulerThread scheduler(job);
    ClusterConfig slow = member(job, Role::kServer, scheduler.port());
    slow.faults = "throttle 500kB/s server0->worker0";
    std::atomic<int> asked = 0;
    Node server(slow, {[&](const Request& request) {
                         ++asked;
                         Message answer;
                         answer.payload.push_back(Frame::of(std::string(1 << 20, 'x')));
                         request.reply(std::move(answer));
                       },
                       {}});
    std::thread join([&] { server.join(); });
    auto workers = joined_workers(job, scheduler.port());
    join.join();
    EXPECT_EQ(error_of_call([&] { workers[0]->ask_and_wait({Role::kServer, 0}, text_message("weights")); }), "");
    EXPECT_EQ(asked, 1);
    workers[0]->leave();
    server.leave();
    EXPECT_EQ(scheduler.result(), "");
  }
}

// A packet to a worker that is dead but not yet known to be lost owns the last reference to a request. When the loss is
// known, the link is closed, the packet is destroyed, and the request's destructor sends a refusal.
TEST(Node, APacketThatOwnsARequestMayDieWithItsLink) {
  ClusterConfig job = job_config("inproc", 0, 3);
  job.silence_deadline_seconds = 3;
  SchedulerThread scheduler(job);
  const auto message = [](Frame payload) {
    Message result;
    result.header.kind = MessageKind::kRingPush;
    result.payload.push_back(std::move(payload));
    return result;
  };
  std::promise<std::shared_ptr<const Request>> asked;
  std::vector<std::unique_ptr<Node>> workers;
  std::vector<std::thread> joins;
  for (int i = 0; i < 3; ++i) {
    const auto keep = [&](const Request& request) { asked.set_value(std::make_shared<const Request>(request)); };
    workers.push_back(
        std::make_unique<Node>(member(job, Role::kWorker, scheduler.port(), i), Node::Handlers{keep, {}}));
    joins.emplace_back([node = workers.back().get()] { node->join(); });
  }
  for (std::thread& join : joins) join.join();
  workers[0].reset();  // dies without a word

  std::string refusal;
  std::thread asker([&] {
    refusal = error_of_call([&] { workers[2]->ask_and_wait({Role::kWorker, 1}, message(Frame::of("question"))); });
  });
  Frame owner = Frame::of("owns the question");
  owner.owner = std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const Request>>>(
      owner.owner, asked.get_future().get());
  workers[1]->ask({Role::kWorker, 0}, message(std::move(owner)), [](const auto&, const auto&) {});
  asker.join();
  EXPECT_THAT(refusal, HasSubstr("was dropped unanswered"));
  workers[1]->leave();
  workers[2]->leave();
  EXPECT_EQ(scheduler.result(), "");
}

TEST_P(Nodes, who_is_missing_at_the_start_is_named) {
  ClusterConfig job = config(1, 2);
  job.start_deadline_seconds = 8;
  SchedulerThread scheduler(job);
  Node server(member(job, Role::kServer, scheduler.port()), {}),
      worker(member(job, Role::kWorker, scheduler.port()), {});
  std::string errors[2];
  std::thread thread([&] { errors[0] = error_of_call([&] { server.join(); }); });
  EXPECT_THROW(
      try { worker.join(); } catch (const std::exception& error) {
        errors[1] = error.what();
        throw;
      },
      Timeout);
  thread.join();
  const std::string verdict = scheduler.result();
  EXPECT_THAT(verdict, HasSubstr("waiting for 1 of 2 workers; joined: "));
  EXPECT_THAT(verdict, HasSubstr("server at "));
  EXPECT_THAT(verdict, HasSubstr("the scheduler listens at "));
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("waiting for 1 of 2 workers"));
}

// Who asks for a place after the others were refused hears the same.
TEST_P(Nodes, who_comes_when_the_job_was_given_up_hears_why) {
  for (const bool ended : {true, false}) {
    ClusterConfig job = config(0, 2);
    job.start_deadline_seconds = ended ? 500 : 0.5;
    job.role = Role::kScheduler;
    Node scheduler(job, {});
    const std::string address = scheduler.scheduler_address();
    const int port = job.transport != "inproc" ? std::stoi(address.substr(address.rfind(':') + 1)) : 0;
    const std::string given_up = error_of_call([&] {
      scheduler.join([&] {
        if (ended) scheduler.ended(Role::kWorker, 1, "was ended by signal 9");
      });
    });
    EXPECT_THAT(given_up, HasSubstr(ended ? "the job cannot start: worker 1 was ended by signal 9"
                                          : "did not start within 0.5 s: waiting for 2 of 2 workers"));
    job.start_deadline_seconds = 500;
    Node late(member(job, Role::kWorker, port, 0), {});
    EXPECT_EQ(error_of_call([&] { late.join(); }), given_up);
  }
}

TEST_P(Nodes, a_scheduler_that_never_comes_is_named) {
  ClusterConfig job = config(0, 1);
  job.start_deadline_seconds = 0.3;
  job.role = Role::kWorker;
  job.scheduler_port = 1;
  Node worker(job, {});
  const std::string error = error_of_call([&] { worker.join(); });
  EXPECT_THAT(error, HasSubstr("did not answer within"));
  EXPECT_THAT(error, HasSubstr(worker.scheduler_address()));
}

TEST_P(Nodes, one_worker_too_many_is_refused) {
  const ClusterConfig job = soon_silent(0, 1);
  SchedulerThread scheduler(job);
  auto workers = joined_workers(job, scheduler.port());
  Node second(member(job, Role::kWorker, scheduler.port()), {});
  EXPECT_THAT(error_of_call([&] { second.join(); }), HasSubstr("one too many"));
  workers[0]->leave();
  workers.clear();
  EXPECT_EQ(scheduler.result(), "");
}

TEST_P(Nodes, who_waits_for_a_place_hears_that_the_job_is_over) {
  ClusterConfig job = config(0, 1);
  job.silence_deadline_seconds = job.start_deadline_seconds = 90;  // longer than soon() waits
  SchedulerThread scheduler(job);
  auto workers = joined_workers(job, scheduler.port());
  Node first(member(job, Role::kWorker, scheduler.port()), {}),
      second(member(job, Role::kWorker, scheduler.port()), {});
  std::vector<std::future<std::string>> errors;
  for (Node* const node : {&first, &second})
    errors.push_back(std::async(std::launch::async, [node] { return error_of_call([node] { node->join(); }); }));
  // One waits for a place, and the other finds the queue full.
  const auto ready = [](const std::future<std::string>& error) {
    return error.wait_for(0s) == std::future_status::ready;
  };
  EXPECT_TRUE(soon([&] { return ready(errors[0]) || ready(errors[1]); }));
  if (ready(errors[1])) std::swap(errors[0], errors[1]);
  EXPECT_THAT(errors[0].get(), HasSubstr("one too many"));
  workers[0]->leave();
  EXPECT_THAT(errors[1].get(), HasSubstr("comes too late: the job is over"));
  workers.clear();
  EXPECT_EQ(scheduler.result(), "");
}

TEST_P(Nodes, two_jobs_in_one_process_do_not_meet) {
  const ClusterConfig jobs[2] = {config(1, 1), config(1, 1)};
  SchedulerThread first(jobs[0]), second(jobs[1]);
  EchoServer server0(member(jobs[0], Role::kServer, first.port())),
      server1(member(jobs[1], Role::kServer, second.port()));
  auto worker0 = joined_workers(jobs[0], first.port()), worker1 = joined_workers(jobs[1], second.port());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(worker0[0]->ask_and_wait({Role::kServer, 0}, text_message("a")).body, "0: a");
    EXPECT_EQ(worker1[0]->ask_and_wait({Role::kServer, 0}, text_message("b")).body, "0: b");
  }
  EXPECT_GE(server0.requests, 5);
  worker0[0]->leave();
  worker1[0]->leave();
  EXPECT_EQ(first.result(), "");
  EXPECT_EQ(second.result(), "");
}

TEST_P(Nodes, a_process_of_another_job_is_refused) {
  for (const bool named : {true, false}) {
    ClusterConfig job = config(0, 1);
    ClusterConfig foreign = job;
    foreign.job = "the other one";
    if (!named) job.job = "";
    SchedulerThread scheduler(job);
    Node stranger(member(foreign, Role::kWorker, scheduler.port()), {});
    const std::string error = error_of_call([&] { stranger.join(); });
    EXPECT_THAT(error, HasSubstr("serves another job than 'the other one'"));
    auto workers = joined_workers(job, scheduler.port());
    workers[0]->leave();
    workers.clear();
    EXPECT_EQ(scheduler.result(), "");
  }
}

// Of a release that speaks another format.
Packet other_format() {
  Message message;
  message.header.kind = MessageKind::kRefusal;
  const Packet packet = encode(message);
  std::string head(reinterpret_cast<const char*>(packet[0].data), packet[0].size);
  head[4] = 77;
  return {Frame::of(std::move(head))};
}

TEST(OtherRelease, OfTheSchedulerEndsAJoinAtOnce) {
  const std::unique_ptr<Transport> scheduler = make_transport(Spec::parse("tcp"));
  scheduler->on_receive([&](LinkId link, const Packet&) { scheduler->send(link, other_format()); });
  const std::string address = scheduler->bind("127.0.0.1:0");
  const ClusterConfig config =
      member(job_config("tcp", 1, 1), Role::kWorker, std::stoi(address.substr(address.rfind(':') + 1)));
  Node node(config, {});
  EXPECT_THAT(error_of_call([&] { node.join(); }),
              HasSubstr("is of another release: [message] it has format version 77; this build speaks version"));
}

TEST(Join, EndsWithAnErrorWhenItsAnswerCannotBeRead) {
  proto::Joined unknown_role;
  unknown_role.mutable_roster()->set_epoch(1);
  unknown_role.mutable_roster()->add_peers()->set_role(77);
  for (const auto& [body, error] : {std::pair{std::string("\xff"), "the body of a reply cannot be read"},
                                    {unknown_role.SerializeAsString(), "role 77 is unknown"}}) {
    const std::unique_ptr<Transport> scheduler = make_transport(Spec::parse("tcp"));
    scheduler->on_receive([&, answer = body](LinkId link, const Packet& packet) {
      Message message = decode(packet);
      if (message.header.kind != MessageKind::kJoin) return;
      message.header.kind = MessageKind::kReply;
      message.body = answer;
      scheduler->send(link, encode(message));
    });
    const std::string address = scheduler->bind("127.0.0.1:0");
    const ClusterConfig config =
        member(job_config("tcp", 1, 1), Role::kWorker, std::stoi(address.substr(address.rfind(':') + 1)));
    Node node(config, {});
    EXPECT_THAT(error_of_call([&] { node.join(); }), HasSubstr(error));
  }
}

TEST(OtherRelease, OfAProcessIsAnsweredByTheScheduler) {
  const ClusterConfig job = job_config("tcp", 0, 1);
  SchedulerThread scheduler(job);
  std::promise<std::string> answer;
  const std::unique_ptr<Transport> process = make_transport(Spec::parse("tcp"));
  process->on_receive([&](LinkId, const Packet& packet) { answer.set_value(decode(packet).body); });
  process->send(process->connect("127.0.0.1:" + std::to_string(scheduler.port())), other_format());
  EXPECT_THAT(answer.get_future().get(), HasSubstr("this scheduler is of another release"));
  Node worker(member(job, Role::kWorker, scheduler.port()), {});
  worker.join();
  worker.leave();
  EXPECT_EQ(scheduler.result(), "");
}

}  // namespace
}  // namespace paceline
