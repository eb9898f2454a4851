// Somebody who is none of the job speaks to its processes: what a few messages must not reach. Secrets are off.

#include <gmock/gmock.h>
#include <message.pb.h>
#include <paceline/mutex.h>
#include <support/soon.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cluster_in_process.h"
#include "membership.h"
#include "refusal.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using test::EndedFile;
using test::error_of_call;
using test::job_config;
using test::member;
using test::SchedulerThread;
using test::soon;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr PeerId kScheduler{Role::kScheduler, 0}, kServer{Role::kServer, 0};

class Stranger {
 public:
  Stranger(const std::string& transport, const std::string& address)
      : transport_(make_transport(Spec::parse(transport))) {
    transport_->on_receive([this](LinkId, const Packet& packet) {
      const Lock lock(mutex_);
      heard_.push_back(decode(packet));
      changed_.notify_all();
    });
    link_ = transport_->connect(address);
  }

  void say(const Message& message) { transport_->send(link_, encode(message)); }
  void say(MessageKind kind, std::uint64_t job, std::uint64_t incarnation, std::uint64_t request,
           const std::string& body = {}, std::uint64_t epoch = 0) {
    Message message;
    message.header = {kind, job, incarnation, request, epoch};
    message.body = body;
    say(message);
  }
  // The first answer to that request.
  Message answer_to(std::uint64_t request) {
    const Lock lock(mutex_);
    const auto find = [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
      return std::ranges::find_if(heard_, [&](const Message& m) { return m.header.request == request; });
    };
    changed_.wait(mutex_, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return find() != heard_.end(); });
    return *find();
  }
  // All that it heard until the receiver has answered a probe that came after everything it said.
  std::vector<Message> all_heard(std::uint64_t job) {
    constexpr std::uint64_t kLast = 987654321;
    say(MessageKind::kProbe, job, kProvisionalIncarnation | 77, kLast, "1");
    answer_to(kLast);
    const Lock lock(mutex_);
    return heard_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Message> heard_ PACELINE_GUARDED_BY(mutex_);
  std::unique_ptr<Transport> transport_;
  LinkId link_ = 0;
};

std::string join_body(const ClusterConfig& job, Role role, int task, const std::string& name) {
  proto::Join body;
  body.set_role(static_cast<std::uint32_t>(role));
  body.set_job(name);
  body.set_host("elsewhere");
  body.set_task(task);
  body.set_pid(1);
  body.set_servers(static_cast<std::uint32_t>(job.servers));
  body.set_workers(static_cast<std::uint32_t>(job.workers));
  return body.SerializeAsString();
}

// A job of one server and two workers, all in this process.
class Job : public testing::TestWithParam<std::string> {
 protected:
  Job() : config_(job_config(GetParam(), 1, 2)) {
    number_ = number_of_job(config_.job);
    if (GetParam() == "inproc") config_.scheduler_host = "place " + std::to_string(number_);  // an address is no secret
  }

  void start() {
    scheduler_ = std::make_unique<SchedulerThread>(config_);
    server_ = std::make_unique<Node>(member(config_, Role::kServer, scheduler_->port(), 0),
                                     Node::Handlers{[this](const Request& request) {
                                                      ++served_;
                                                      request.reply({});
                                                    },
                                                    {}});
    for (int i = 0; i < 2; ++i)
      workers_.push_back(
          std::make_unique<Node>(member(config_, Role::kWorker, scheduler_->port(), i), Node::Handlers{}));
    std::vector<std::thread> threads;
    for (Node* node : {server_.get(), workers_[0].get(), workers_[1].get()})
      threads.emplace_back([node] { node->join(); });
    for (std::thread& thread : threads) thread.join();
  }
  Stranger stranger_at(const PeerId& peer) {
    const std::string address =
        peer.role == Role::kScheduler ? workers_[0]->scheduler_address() : workers_[0]->roster().find(peer)->address;
    return {config_.transport, address};
  }
  // Everybody is there, gets on and leaves.
  void end_well() {
    for (const auto& worker : workers_) {
      EXPECT_EQ(error_of_call([&] { worker->ask_and_wait(kServer, push()); }), "");
      EXPECT_EQ(worker->roster().live(Role::kWorker), (std::vector<int>{0, 1}));
    }
    EXPECT_EQ(server_->failure(), nullptr);
    for (const auto& worker : workers_) worker->leave();
    server_->leave();
    workers_.clear();
    server_.reset();
    EXPECT_EQ(scheduler_->result(), "");
  }
  static Message push() {
    Message message;
    message.header.kind = MessageKind::kPushPull;
    return message;
  }

  ClusterConfig config_;
  std::uint64_t number_ = 0;
  std::unique_ptr<SchedulerThread> scheduler_;
  std::unique_ptr<Node> server_;
  std::vector<std::unique_ptr<Node>> workers_;
  std::atomic<int> served_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Over, Job, testing::Values("inproc", "tcp"), [](const auto& named) { return named.param; });

TEST_P(Job, a_join_under_a_wrong_name_learns_neither_name_nor_number) {
  start();
  Stranger stranger = stranger_at(kScheduler);
  stranger.say(MessageKind::kJoin, 0, kProvisionalIncarnation | 5, 9, join_body(config_, Role::kWorker, 0, "guess"));
  const Message answer = stranger.answer_to(9);
  EXPECT_EQ(answer.header.kind, MessageKind::kRefusal);
  EXPECT_EQ(answer.header.job, 0u);
  EXPECT_EQ(answer.header.incarnation, 0u);
  EXPECT_THAT(answer.body, Not(HasSubstr(config_.job)));
  EXPECT_THAT(answer.body, HasSubstr("serves another job than 'guess'"));
  end_well();
}

TEST_P(Job, a_probe_learns_nothing) {
  start();
  for (const PeerId peer : {kScheduler, kServer}) {
    Stranger stranger = stranger_at(peer);
    stranger.say(MessageKind::kProbe, peer.role == Role::kScheduler ? 0 : number_, 3, 9, "1");
    const Message answer = stranger.answer_to(9);
    EXPECT_NE(answer.header.job, peer.role == Role::kScheduler ? number_ : 0);
    EXPECT_EQ(answer.header.incarnation, 0u);
  }
  end_well();
}

// A process that waits for a place is no member yet.
TEST_P(Job, who_only_waits_gets_no_roster) {
  start();
  Stranger stranger = stranger_at(kScheduler);
  stranger.say(MessageKind::kJoin, number_, kProvisionalIncarnation | 5, 9,
               join_body(config_, Role::kWorker, 0, config_.job));
  stranger.say(MessageKind::kHeartbeat, number_, kProvisionalIncarnation | 5, 0);
  for (const Message& message : stranger.all_heard(number_)) {
    proto::Notice notice;
    if (message.header.kind != MessageKind::kRoster) continue;
    ASSERT_TRUE(notice.ParseFromString(message.body));
    EXPECT_FALSE(notice.has_roster());
    EXPECT_EQ(message.header.incarnation, 0u);
  }
  end_well();
}

TEST_P(Job, a_refusal_of_no_request_ends_nobody) {
  start();
  for (const PeerId peer : {kScheduler, kServer}) {
    Stranger stranger = stranger_at(peer);
    stranger.say(MessageKind::kRefusal, number_, 0, 0, refusal_of(NetworkError("the end is near")));
    stranger.all_heard(number_);
  }
  EXPECT_EQ(server_->malformed(), 1);
  end_well();
}

TEST_P(Job, a_stolen_number_speaks_for_nobody) {
  start();
  EXPECT_EQ(error_of_call([&] { workers_[1]->ask_and_wait(kServer, push()); }), "");
  const std::uint64_t stolen = workers_[1]->incarnation(), epoch = workers_[1]->roster().epoch;
  Stranger at_scheduler = stranger_at(kScheduler), at_server = stranger_at(kServer);
  at_scheduler.say(MessageKind::kLeave, number_, stolen, 1001, {}, epoch);
  proto::Heartbeat far;
  far.set_step(1000000);
  at_scheduler.say(MessageKind::kHeartbeat, number_, stolen, 0, far.SerializeAsString(), epoch);
  at_server.say(MessageKind::kPushPull, number_, stolen, 1002, {}, epoch);
  at_server.say(MessageKind::kProbe, number_, stolen, 1, "1", epoch);  // its own request, whose answer is kept
  for (Stranger* stranger : {&at_scheduler, &at_server}) {
    for (const Message& message : stranger->all_heard(number_)) {
      EXPECT_THAT(message.header.kind, AnyOf(MessageKind::kResend, MessageKind::kRefusal));
      EXPECT_EQ(message.header.incarnation, 0u);
    }
  }
  EXPECT_EQ(served_, 1);
  end_well();
}

// A worker that met itself in mode gossip would wait for its own answer when it leaves.
TEST_P(Job, nobody_hears_its_own_number) {
  start();
  Stranger stranger = stranger_at(kServer);
  stranger.say(MessageKind::kPushPull, number_, server_->incarnation(), 1001, {}, server_->roster().epoch);
  stranger.all_heard(number_);
  EXPECT_EQ(server_->malformed(), 1);
  end_well();
}

// It would wait for ever otherwise. Only a key can tell who is right.
TEST_P(Job, who_comes_after_an_impostor_is_told) {
  start();
  Stranger stranger = stranger_at(kServer);
  stranger.say(MessageKind::kPushPull, number_, workers_[1]->incarnation(), 1001, {}, workers_[1]->roster().epoch);
  EXPECT_EQ(stranger.answer_to(1001).header.kind, MessageKind::kReply);
  EXPECT_THAT(error_of_call([&] { workers_[1]->ask_and_wait(kServer, push()); }),
              HasSubstr("worker 1 speaks on another link"));
  for (const auto& worker : workers_) worker->leave();
  server_->leave();
  EXPECT_EQ(scheduler_->result(), "");
}

// Its answer would go to the process whose number it carries. Malformed joins would close that process's link.
TEST_P(Job, a_join_with_a_stolen_number_reaches_nobody) {
  start();
  Stranger stranger = stranger_at(kScheduler);
  for (const Node* member : {workers_[1].get(), server_.get()}) {
    const std::uint64_t stolen = member->incarnation(), epoch = member->roster().epoch;
    for (std::uint64_t request = 0; request < 10; ++request)
      stranger.say(MessageKind::kJoin, number_, stolen, request, "no body of a join", epoch);
    stranger.say(MessageKind::kLeave, number_, stolen, 1001, {}, epoch);
  }
  stranger.all_heard(number_);
  end_well();
}

TEST_P(Job, the_number_of_a_worker_that_has_left_speaks_for_nobody) {
  start();
  const std::uint64_t stolen = workers_[1]->incarnation();
  workers_[1]->leave();
  ASSERT_TRUE(soon([&] { return workers_[0]->roster().live(Role::kWorker).size() == 1; }));
  ASSERT_TRUE(soon([&] { return server_->roster().live(Role::kWorker).size() == 1; }));
  for (const PeerId peer : {kScheduler, kServer}) {
    Stranger stranger = stranger_at(peer);
    for (const MessageKind kind : {MessageKind::kPushPull, MessageKind::kBarrier, MessageKind::kLeave})
      stranger.say(kind, number_, stolen, 1001, {}, server_->roster().epoch);
    for (const Message& message : stranger.all_heard(number_)) EXPECT_NE(message.header.kind, MessageKind::kReply);
  }
  EXPECT_EQ(served_, 0);
  workers_[0]->leave();
  server_->leave();
  EXPECT_EQ(scheduler_->result(), "");
}

// A worker speaks where it first speaks, but not where it was only refused.
TEST_P(Job, a_refused_request_takes_no_number) {
  start();
  Stranger stranger = stranger_at(kServer);
  stranger.say(MessageKind::kBarrier, number_, workers_[1]->incarnation(), 1001, {}, workers_[1]->roster().epoch);
  EXPECT_EQ(stranger.answer_to(1001).header.kind, MessageKind::kRefusal);
  end_well();
}

TEST_P(Job, a_probe_gets_back_a_number_and_no_more) {
  start();
  Stranger stranger = stranger_at(kScheduler);
  stranger.say(MessageKind::kProbe, 0, kProvisionalIncarnation | 5, 8, std::string(1 << 20, '1'));
  stranger.say(MessageKind::kProbe, 0, kProvisionalIncarnation | 5, 9, "00017");
  for (const Message& message : stranger.all_heard(number_)) EXPECT_LT(message.body.size(), 3u);
  EXPECT_EQ(stranger.answer_to(9).body, "17");
  end_well();
}

TEST_P(Job, an_answer_is_taken_from_its_link_alone) {
  start();
  std::atomic<bool> answered = false;
  proto::Barrier body;
  body.set_number(1);
  Message barrier;
  barrier.header.kind = MessageKind::kBarrier;
  barrier.body = body.SerializeAsString();
  // Its request to the scheduler waits for the other worker. A stranger answers it, at the server's port and in its
  // name.
  const std::uint64_t number =
      workers_[0]->ask(kScheduler, barrier, [&](const auto&, const auto&) { answered = true; });
  Stranger stranger = stranger_at(kServer);
  for (std::uint64_t request = 1; request < 100; ++request)
    stranger.say(MessageKind::kReply, number_, workers_[0]->incarnation(), request);
  stranger.all_heard(number_);
  EXPECT_FALSE(answered);
  workers_[0]->cancel(number);
  end_well();
}

TEST_P(Job, a_role_asks_what_it_may) {
  start();
  EXPECT_THAT(error_of_call([&] {
                server_->ask_and_wait(kScheduler, [] {
                  Message message;
                  message.header.kind = MessageKind::kBarrier;
                  return message;
                }());
              }),
              HasSubstr("a scheduler does not answer this to a server"));
  end_well();
}

TEST_P(Job, early_messages_are_bounded_in_bytes) {
  start();
  Stranger stranger = stranger_at(kServer);
  constexpr std::size_t kBytes = std::size_t{20} << 20;
  const auto owner = std::make_shared<std::vector<std::byte>>(kBytes);
  Message big = push();
  big.payload.push_back({owner, owner->data(), kBytes});
  for (std::uint64_t i = 0; i < 20; ++i) {
    big.header = {MessageKind::kPushPull, number_, 1000 + i, i + 1, 1000};
    stranger.say(big);
  }
  stranger.all_heard(number_);
  if (GetParam() == "inproc") {           // where a receiver keeps the sender's own bytes
    EXPECT_LE(owner.use_count() - 2, 1);  // beside `owner` and `big`
  }
  end_well();
}

// Only inproc keeps the sender's own bytes, whose owners can be counted.
class JobInproc : public Job {};
INSTANTIATE_TEST_SUITE_P(Over, JobInproc, testing::Values("inproc"), [](const auto& named) { return named.param; });

TEST_P(JobInproc, early_messages_are_bounded_in_frames) {
  start();
  Stranger stranger = stranger_at(kServer);
  const auto owner = std::make_shared<std::vector<std::byte>>(1);
  Message many = push();
  many.payload.assign(200'000, Frame{owner, owner->data(), 0});
  for (std::uint64_t i = 0; i < 3; ++i) {
    many.header = {MessageKind::kPushPull, number_, 1000 + i, i + 1, 1000};
    stranger.say(many);
  }
  stranger.all_heard(number_);
  many.payload.clear();
  EXPECT_TRUE(soon([&] { return owner.use_count() == 1; })) << owner.use_count();
  end_well();
}

TEST_P(Job, a_join_without_a_number_takes_no_place) {
  SchedulerThread scheduler(config_);
  Node first(member(config_, Role::kWorker, scheduler.port(), 0), {});
  std::string error;
  std::thread joining([&] { error = error_of_call([&] { first.join(); }); });
  const std::string address = first.scheduler_address();
  Stranger stranger(config_.transport, address);
  for (const std::uint64_t incarnation : {std::uint64_t{0}, std::uint64_t{5}}) {
    stranger.say(MessageKind::kJoin, number_, incarnation, 9 + incarnation,
                 join_body(config_, Role::kWorker, 1, config_.job));
    EXPECT_EQ(stranger.answer_to(9 + incarnation).header.kind, MessageKind::kRefusal);
  }
  Node second(member(config_, Role::kWorker, scheduler.port(), 1), {}),
      server(member(config_, Role::kServer, scheduler.port(), 0), {});
  std::thread others[] = {std::thread([&] { second.join(); }), std::thread([&] { server.join(); })};
  joining.join();
  for (std::thread& thread : others) thread.join();
  EXPECT_EQ(error, "");
  EXPECT_EQ(first.rank(), 0);
  for (Node* node : {&first, &second, &server}) node->leave();
  EXPECT_EQ(scheduler.result(), "");
}

// ---- mistakes of those who start a job ----

TEST_P(Job, a_task_number_is_given_once) {
  config_.heartbeat_seconds = 5;  // who is silent for three may be replaced
  config_.silence_deadline_seconds = 60;
  SchedulerThread scheduler(config_);
  Node first(member(config_, Role::kWorker, scheduler.port(), 0), {}),
      twice(member(config_, Role::kWorker, scheduler.port(), 0), {});
  std::string errors[2];
  std::atomic<int> refused = 0;
  const auto join = [&](Node& node, std::string& error) {
    error = error_of_call([&] { node.join(); });
    refused += !error.empty();
  };
  std::thread joins[] = {std::thread([&] { join(first, errors[0]); }), std::thread([&] { join(twice, errors[1]); })};
  EXPECT_TRUE(soon([&] { return refused > 0; }));
  Node second(member(config_, Role::kWorker, scheduler.port(), 1), {}),
      server(member(config_, Role::kServer, scheduler.port(), 0), {});
  std::thread others[] = {std::thread([&] { second.join(); }), std::thread([&] { server.join(); })};
  for (std::thread& thread : joins) thread.join();
  for (std::thread& thread : others) thread.join();
  EXPECT_TRUE(errors[0].empty() != errors[1].empty());
  EXPECT_THAT(errors[0] + errors[1], HasSubstr("has already joined with task number 0"));
  Node& in = errors[0].empty() ? first : twice;
  for (Node* node : {&in, &second, &server}) node->leave();
  EXPECT_EQ(scheduler.result(), "");
}

TEST_P(Job, all_must_believe_in_the_same_job) {
  config_.start_deadline_seconds = 8;
  SchedulerThread scheduler(config_);
  ClusterConfig other = config_;
  other.workers = 3;
  Node worker(member(other, Role::kWorker, scheduler.port(), 0), {});
  EXPECT_THAT(error_of_call([&] { worker.join(); }),
              testing::AllOf(HasSubstr("1 servers and 3 workers; the scheduler has been told 1 and 2"),
                             HasSubstr("DMLC_NUM_WORKER")));
  EXPECT_THAT(scheduler.result(), HasSubstr("waiting for"));
}

TEST_P(Job, who_ends_before_the_start_is_named_at_once) {
  config_.start_deadline_seconds = 500;  // longer than a test may take
  const EndedFile ended(&config_);
  SchedulerThread scheduler(config_);
  Node worker(member(config_, Role::kWorker, scheduler.port(), 0), {});
  std::string error;
  std::thread joining([&] { error = error_of_call([&] { worker.join(); }); });
  ended.add("worker 1 was ended by signal 9\n");
  joining.join();
  EXPECT_EQ(error, "the job cannot start: worker 1 was ended by signal 9");
  EXPECT_EQ(scheduler.result(), error);
}

TEST_P(Job, missing_tasks_are_named) {
  config_.start_deadline_seconds = 8;
  config_.workers = 4;
  SchedulerThread scheduler(config_);
  Node second(member(config_, Role::kWorker, scheduler.port(), 1), {}),
      last(member(config_, Role::kWorker, scheduler.port(), 3), {});
  std::thread joins[] = {std::thread([&] { error_of_call([&] { second.join(); }); }),
                         std::thread([&] { error_of_call([&] { last.join(); }); })};
  for (std::thread& thread : joins) thread.join();
  EXPECT_THAT(scheduler.result(), HasSubstr("waiting for 1 of 1 servers and 2 of 4 workers (tasks 0 2)"));
}

// ---- who holds the others up ----

TEST_P(Job, who_hangs_is_named_and_in_the_end_lost) {
  config_.silence_deadline_seconds = 20;
  config_.progress_deadline_seconds = 3;
  start();
  workers_[1]->reached(37);
  proto::Barrier body;
  body.set_number(1);
  Message barrier;
  barrier.header.kind = MessageKind::kBarrier;
  barrier.body = body.SerializeAsString();
  // Its heart beats on, but it never comes to the barrier.
  EXPECT_EQ(error_of_call([&] { workers_[0]->ask_and_wait(kScheduler, barrier); }), "");
  EXPECT_TRUE(soon([&] { return workers_[0]->roster().live(Role::kWorker) == std::vector<int>{0}; }));
  EXPECT_TRUE(soon([&] { return workers_[1]->failure() != nullptr; }));
  // By the scheduler's own count of seconds.
  EXPECT_THAT(error_of_call([&] { std::rethrow_exception(workers_[1]->failure()); }),
              testing::ContainsRegex("declared lost: it has ended 37 steps, and has asked nothing for [3-7]"));
  workers_[0]->leave();
  server_->leave();
  workers_.clear();
  server_.reset();
  EXPECT_EQ(scheduler_->result(), "");
}

}  // namespace
}  // namespace paceline
