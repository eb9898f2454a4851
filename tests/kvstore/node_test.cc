#include "node.h"

#include <gmock/gmock.h>

#include "cluster_in_process.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using test::error_of_call;
using test::job_config;
using test::member;
using test::SchedulerThread;
using testing::HasSubstr;

struct Network {
  std::string transport;
  bool faulty = false;
};
void PrintTo(const Network& network, std::ostream* out) {
  *out << network.transport << (network.faulty ? "_faulty" : "");
}

class Nodes : public testing::TestWithParam<Network> {
 protected:
  ClusterConfig config(int servers, int workers) {
    return job_config(GetParam().transport, servers, workers, GetParam().faulty);
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
      : node(config, {[this](Request request) { answer(std::move(request)); },
                      [this](const Roster& roster) { over = roster.over; }}),
        thread([this] {
          try {
            node.join();
            while (!over && !node.failure()) std::this_thread::sleep_for(1ms);
            if (node.failure()) std::rethrow_exception(node.failure());
            node.leave();
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
    Message message;
    message.body = std::to_string(node.rank()) + ": " + request.message().body;
    message.payload = request.message().payload;
    request.reply(std::move(message));
  }

  std::atomic<int> requests = 0;
  std::atomic<bool> over = false;
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
  for (int i = 0; i < 3; ++i)
    workers.emplace_back([&, i] {
      Node node(member(job, Role::kWorker, scheduler.port(), i), {});
      node.join();
      EXPECT_EQ(node.rank(), i);
      EXPECT_EQ(node.roster().live(Role::kServer), (std::vector<int>{0, 1}));
      EXPECT_EQ(node.roster().live(Role::kWorker), (std::vector<int>{0, 1, 2}));
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

}  // namespace
}  // namespace paceline
