// A job with secrets: who is admitted, and what a link may say.

#include <gmock/gmock.h>
#include <kvstore/one_key.h>
#include <message.pb.h>
#include <paceline/error.h>
#include <paceline/optimizer.h>
#include <support/cluster_in_process.h>
#include <support/soon.h>

#include <chrono>
#include <thread>

#include "message.h"
#include "secrets/job_secret.h"
#include "secrets/keyring.h"

namespace paceline::test {
namespace {

using namespace std::chrono_literals;
using test::soon;
using testing::HasSubstr;

const std::string kSecret(kSecretBytes, 's'), kOther(kSecretBytes, 'o');

class Rejected final : public TransportObserver {
 public:
  void on_send(LinkId, const Packet&) override {}
  void on_receive(LinkId, const Packet&) override { ++received; }
  void on_reject(const std::string&) override { ++rejected; }
  std::atomic<int> received = 0, rejected = 0;
};

// A transport with a key, whose packets are counted.
struct End {
  End(const std::string& secret, bool is_scheduler) : keyring(std::make_shared<Keyring>(secret, is_scheduler)) {
    transport->use_keys(keyring);
    transport->add_observer(seen);
    transport->on_receive([this](LinkId link, const Packet&) { from = link; });
  }
  const std::shared_ptr<Keyring> keyring;
  const std::shared_ptr<Rejected> seen = std::make_shared<Rejected>();
  std::atomic<LinkId> from = 0;
  const std::unique_ptr<Transport> transport = make_transport(Spec::parse("tcp"));
};

TEST(Secrets, keys_for_different_purposes_differ) {
  const Keyring scheduler(kSecret, true), worker(kSecret, false), other(kOther, false);
  EXPECT_EQ(scheduler.scheduler_key(), worker.scheduler_key());
  EXPECT_EQ(scheduler.listening().open, worker.scheduler_key());
  EXPECT_NE(other.scheduler_key(), worker.scheduler_key());
  EXPECT_NE(scheduler.own().open, scheduler.listening().open);
  EXPECT_NE(worker.own().open, Keyring(kSecret, false).own().open);
  EXPECT_NE(derived_key(kSecret, "join"), derived_key(kSecret, "scheduler"));
}

TEST(Secrets, a_newcomer_is_let_in_by_the_proof_for_its_own_key) {
  Keyring scheduler(kSecret, true);
  const Keyring one(kSecret, false), two(kSecret, false), stranger(kOther, false);
  const std::string key = one.own().open;
  EXPECT_FALSE(scheduler.let_in(key, stranger.proof(key), 1));
  EXPECT_FALSE(scheduler.let_in(key, two.proof(two.own().open), 1));
  EXPECT_FALSE(scheduler.let_in("", one.proof(""), 1));
  EXPECT_FALSE(scheduler.speaks_for(key, 1));
  EXPECT_TRUE(scheduler.let_in(key, one.proof(key), 1));
  EXPECT_TRUE(scheduler.let_in(key, one.proof(key), 1));
  EXPECT_FALSE(scheduler.let_in(key, one.proof(key), 2));
  EXPECT_TRUE(scheduler.speaks_for(key, 1));
  scheduler.set_members({{key, 7}});
  EXPECT_TRUE(scheduler.speaks_for(key, 7) && scheduler.speaks_for(key, 1));
  scheduler.set_members({});
  EXPECT_FALSE(scheduler.admits(key) || scheduler.speaks_for(key, 7) || scheduler.speaks_for(key, 1));
  EXPECT_FALSE(scheduler.let_in(key, one.proof(key), 1));
}

TEST(Secrets, links_know_the_key_of_their_peer) {
  End server(kSecret, true), client(kSecret, false);
  const LinkId link = client.transport->connect(server.transport->bind("127.0.0.1:0"), client.keyring->scheduler_key());
  client.transport->send(link, {Frame::of("hello")});
  ASSERT_TRUE(soon([&] { return server.from != 0; }));
  EXPECT_EQ(server.transport->identity_of(server.from), client.keyring->own().open);
  EXPECT_EQ(client.transport->identity_of(link), server.keyring->listening().open);
  EXPECT_EQ(server.transport->identity_of(12345), "");
}

TEST(Secrets, a_stranger_is_turned_away_and_counted) {
  End server(kSecret, true), other(kOther, false);
  const std::string address = server.transport->bind("127.0.0.1:0");
  const auto plain = make_transport(Spec::parse("tcp"));
  plain->send(plain->connect(address), {Frame::of("hello")});
  ASSERT_TRUE(soon([&] { return server.seen->rejected > 0; }));
  const int before = server.seen->rejected;
  other.transport->send(other.transport->connect(address, other.keyring->scheduler_key()), {Frame::of("hello")});
  ASSERT_TRUE(soon([&] { return server.seen->rejected > before; }));
  EXPECT_EQ(server.seen->received, 0);
}

TEST(Secrets, a_member_admits_its_roster_and_hangs_up_on_who_was_lost) {
  End server(kSecret, false), one(kSecret, false);
  const std::string address = server.transport->bind("127.0.0.1:0"), key = server.keyring->own().open;
  const LinkId link = one.transport->connect(address, key);
  one.transport->send(link, {Frame::of("before it is known")});
  std::this_thread::sleep_for(50ms);
  server.keyring->set_members({{one.keyring->own().open, 1}});
  ASSERT_TRUE(soon([&] { return server.seen->received == 1; }));
  EXPECT_EQ(server.transport->identity_of(server.from), one.keyring->own().open);
  {
    End two(kSecret, false);
    two.transport->send(two.transport->connect(address, key), {Frame::of("never known")});
    ASSERT_TRUE(soon([&] { return server.seen->rejected > 0; }));
  }
  const int before = server.seen->rejected;
  server.keyring->set_members({});
  server.transport->close_unadmitted();
  ASSERT_TRUE(soon([&] {
    one.transport->send(link, {Frame::of("lost")});
    return server.seen->rejected > before + 2;  // two's last refusals may be told late
  }));
  EXPECT_EQ(server.seen->received, 1);
  EXPECT_EQ(server.transport->identity_of(server.from), "");
}

class JobWithSecrets : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Over, JobWithSecrets, testing::Values("tcp", "shm"));

TEST_P(JobWithSecrets, trains) {
  for (const char* mode : {"dist_sync", "dist_async:staleness=none"}) {
    ClusterOptions options;
    options.mode = mode;
    options.transport = GetParam();
    options.secret = kSecret;
    ClusterInProcess cluster(options);
    const std::vector<double> ones(100000, 1);  // larger than what CURVE carries
    const std::vector<NDArray> weights = start(cluster, ones, optim::SGD{.lr = 1});
    for (int step = 0; step < 3; ++step)
      cluster.run(
          [&](int worker, KVStore&) { push_pull(cluster, worker, weights[static_cast<std::size_t>(worker)], ones); });
    cluster.run([](int, KVStore& store) { store.barrier(); });
    cluster.run([&](int worker, KVStore& store) {
      const NDArray& weight = weights[static_cast<std::size_t>(worker)];
      store.pull("w", weight);
      EXPECT_LT(weight.to_vector<double>().at(99999), 0) << mode;
    });
  }
}

TEST_P(JobWithSecrets, a_lost_worker_comes_back_with_another_key) {
  ClusterOptions options;
  options.transport = GetParam();
  options.secret = kSecret;
  ClusterInProcess cluster(options);
  cluster.kill_worker(1);
  cluster.join_worker(1);
  cluster.run([](int, KVStore& kv) { kv.barrier(); });
}

// A process of the job that says what it likes.
class Liar {
 public:
  Liar(const std::string& address, const std::string& secret) : end_(secret, false) {
    link_ = end_.transport->connect(address, end_.keyring->scheduler_key());
  }
  void say(MessageKind kind, std::uint64_t incarnation, const std::string& body = {}) {
    Message message;
    message.header.kind = kind;
    message.header.incarnation = incarnation;
    message.body = body;
    end_.transport->send(link_, encode(message));
  }
  std::string join_body(const std::string& job, const std::string& proof) const {
    proto::Join join;
    join.set_role(static_cast<std::uint32_t>(Role::kWorker));
    join.set_job(job);
    join.set_proof(proof);
    return join.SerializeAsString();
  }
  const Keyring& keyring() const { return *end_.keyring; }
  int received() const { return end_.seen->received; }

 private:
  End end_;
  LinkId link_;
};

ClusterConfig scheduler_of(ClusterConfig config) {
  config.role = Role::kScheduler;
  config.secret = kSecret;
  return config;
}

TEST(Secrets, a_link_speaks_only_for_the_process_that_proved_its_key) {
  const ClusterConfig config = job_config("tcp", 0, 2);
  Node scheduler(scheduler_of(config), {});
  constexpr std::uint64_t kOne = std::uint64_t{1} << 63 | 1;
  Liar one(scheduler.scheduler_address(), kSecret), two(scheduler.scheduler_address(), kSecret);
  one.say(MessageKind::kJoin, kOne, one.join_body(config.job, one.keyring().proof(one.keyring().own().open)));
  // A heartbeat is answered once its sender has joined.
  ASSERT_TRUE(soon([&] {
    one.say(MessageKind::kHeartbeat, kOne);
    return one.received() > 0;
  }));
  EXPECT_EQ(scheduler.malformed(), 0);
  two.say(MessageKind::kJoin, kOne + 1, two.join_body(config.job, one.keyring().proof(one.keyring().own().open)));
  ASSERT_TRUE(soon([&] { return scheduler.malformed() == 1; }));
  two.say(MessageKind::kLeave, kOne);
  ASSERT_TRUE(soon([&] { return scheduler.malformed() == 2; }));
  two.say(MessageKind::kHeartbeat, kOne);
  two.say(MessageKind::kLeave, kOne);
  ASSERT_TRUE(soon([&] { return scheduler.malformed() == 3; }));
  EXPECT_EQ(two.received(), 0);
}

TEST(Secrets, a_process_with_another_key_learns_what_may_be_wrong) {
  const ClusterConfig config = job_config("tcp", 0, 1);
  const Node scheduler(scheduler_of(config), {});
  ClusterConfig worker = member(config, Role::kWorker, std::stoi(scheduler.scheduler_address().substr(10)));
  worker.secret = kOther;
  worker.start_deadline_seconds = 1;
  EXPECT_THAT(error_of_call([&] { Node(worker, {}).join(); }),
              testing::AllOf(HasSubstr("did not answer within 1.0 s"), HasSubstr("the same key as this process")));
}

}  // namespace
}  // namespace paceline::test
