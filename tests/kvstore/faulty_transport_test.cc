// What a transport with a fault plan does to packets. The inner transport writes down what reaches it.

#include "faults/faulty_transport.h"

#include <gtest/gtest.h>
#include <paceline/mutex.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace paceline {
namespace {

using namespace std::chrono_literals;
constexpr LinkId kServer = 1, kStranger = 9;

class Notebook final : public Transport {
 public:
  std::string bind(const std::string& address) override { return address; }
  LinkId connect(const std::string&, const std::string&) override { return kServer; }
  void send(LinkId, Packet packet) override {
    const Lock lock(mutex_);
    sent_.emplace_back(reinterpret_cast<const char*>(packet[0].data), packet[0].size);
    changed_.notify_all();
  }
  void close(LinkId) override {}
  std::string describe(LinkId) override { return ""; }
  void on_receive(Handler handler) override { handler_ = std::move(handler); }
  void add_observer(std::shared_ptr<TransportObserver>) override {}

  void arrive(const std::string& text) { handler_(kServer, {Frame::of(text)}); }
  std::vector<std::string> wait(std::size_t count) {
    const Lock lock(mutex_);
    changed_.wait(mutex_, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return sent_.size() >= count; });
    return sent_;
  }
  std::vector<std::string> sent() { return wait(0); }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> sent_ PACELINE_GUARDED_BY(mutex_);
  Handler handler_;
};

// A head of that kind, as far as a plan looks at it.
std::string head(MessageKind kind, const std::string& text = "") {
  return std::string("PCL\1\2") + static_cast<char>(kind) + text;
}

struct Under {
  explicit Under(const std::string& plan, const std::string& self = "worker0") {
    auto inner = std::make_unique<Notebook>();
    notebook = inner.get();
    transport = make_faulty_transport(std::move(inner), FaultPlan::parse(plan), self, false);
    transport->on_receive([this](LinkId, const Packet&) { ++received; });
    transport->name_link(kServer, "server0");
  }
  void send(const std::string& text, LinkId link = kServer) { transport->send(link, {Frame::of(text)}); }
  std::vector<std::string> of_hundred() {
    for (int i = 0; i < 100; ++i) send("packet " + std::to_string(i));
    return notebook->sent();
  }

  Notebook* notebook = nullptr;
  std::unique_ptr<FaultyTransport> transport;
  int received = 0;
};

TEST(FaultyTransport, TheSameSeedDropsTheSamePackets) {
  Under first("drop 0.5; seed 3"), again("seed 3; drop 0.5"), other("drop 0.5; seed 4");
  const auto kept = first.of_hundred();
  EXPECT_EQ(kept, again.of_hundred());
  EXPECT_NE(kept, other.of_hundred());
  EXPECT_GT(kept.size(), 25u);
  EXPECT_LT(kept.size(), 75u);
}

TEST(FaultyTransport, ADropConcernsItsLinkAlone) {
  Under other_server("drop 1 worker0->server1"), other_worker("drop 1 worker1"), this_one("drop 1 worker0->server0");
  EXPECT_EQ(other_server.of_hundred().size(), 100u);
  EXPECT_EQ(other_worker.of_hundred().size(), 100u);
  EXPECT_EQ(this_one.of_hundred().size(), 0u);
  this_one.send("to somebody without a name", kStranger);
  EXPECT_EQ(this_one.notebook->sent().size(), 1u);
}

TEST(FaultyTransport, ADuplicateIsSentTwice) {
  Under all("duplicate 1");
  all.send("a");
  all.send("b");
  EXPECT_EQ(all.notebook->sent(), (std::vector<std::string>{"a", "a", "b", "b"}));
}

TEST(FaultyTransport, AKindCanBeChosen) {
  Under barriers("drop 1 of barrier");
  barriers.send(head(MessageKind::kBarrier));
  barriers.send(head(MessageKind::kReply));
  EXPECT_EQ(barriers.notebook->sent(), std::vector<std::string>{head(MessageKind::kReply)});
}

TEST(FaultyTransport, DelaysKeepTheOrder) {
  Under slow("delay 1ms; seed 5");
  std::vector<std::string> order;
  for (int i = 0; i < 100; ++i) slow.send(order.emplace_back(std::to_string(i)));
  EXPECT_EQ(slow.notebook->wait(100), order);
}

TEST(FaultyTransport, ReorderingLosesNothing) {
  Under shuffled("reorder 0.5; seed 5");
  std::vector<std::string> order;
  for (int i = 0; i < 100; ++i) shuffled.send(order.emplace_back(std::to_string(i)));
  std::vector<std::string> sent = shuffled.notebook->wait(100);
  EXPECT_NE(sent, order);
  std::sort(sent.begin(), sent.end());
  std::sort(order.begin(), order.end());
  EXPECT_EQ(sent, order);
}

TEST(FaultyTransport, WindowsFollowTheSteps) {
  Under window("cut from step 3 to step 5");
  for (std::uint64_t step = 0; step < 7; ++step) {
    window.transport->reached(step);
    window.send(std::to_string(step));
  }
  EXPECT_EQ(window.notebook->sent(), (std::vector<std::string>{"0", "1", "2", "5", "6"}));
}

TEST(FaultyTransport, ACutEndsAfterItsTime) {
  Under cut("cut at step 1 for 20ms");
  cut.send("before");
  const auto begin = std::chrono::steady_clock::now();  // of the cut, or a little earlier
  cut.transport->reached(1);
  while (cut.notebook->sent().size() < 2) {
    cut.send("after");
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
  EXPECT_EQ(cut.notebook->sent(), (std::vector<std::string>{"before", "after"}));
}

TEST(FaultyTransport, WhoIsKilledAtAStepFallsSilent) {
  Under killed("kill worker0 at step 2"), spared("kill worker1 at step 2");
  for (Under* one : {&killed, &spared}) {
    one->transport->reached(1);
    one->send("alive");
    one->notebook->arrive("heard");
    one->transport->reached(2);
    one->send("dead");
    one->notebook->arrive("not heard");
  }
  EXPECT_EQ(killed.notebook->sent(), std::vector<std::string>{"alive"});
  EXPECT_EQ(killed.received, 1);
  EXPECT_EQ(spared.notebook->sent().size(), 2u);
  EXPECT_EQ(spared.received, 2);
}

TEST(FaultyTransport, AKillStrikesAtItsPoint) {
  Under before("kill worker0 at step 2 before sending reply"), receiving("kill worker0 on receiving push_pull");
  before.send(head(MessageKind::kReply, "too early"));
  before.transport->reached(2);
  before.send(head(MessageKind::kBarrier));
  before.send(head(MessageKind::kReply));
  before.send(head(MessageKind::kBarrier));
  EXPECT_EQ(before.notebook->sent(),
            (std::vector<std::string>{head(MessageKind::kReply, "too early"), head(MessageKind::kBarrier)}));
  receiving.notebook->arrive(head(MessageKind::kReply));
  receiving.notebook->arrive(head(MessageKind::kPushPull));
  receiving.send("dead");
  EXPECT_EQ(receiving.received, 1);
  EXPECT_TRUE(receiving.notebook->sent().empty());
}

TEST(FaultyTransport, AfterSendingThePacketIsOut) {
  Under after("kill worker0 after sending reply");
  after.send(head(MessageKind::kReply));
  EXPECT_EQ(after.notebook->wait(1).size(), 1u);
  std::size_t sent = 0;
  do {  // until it is dead
    sent = after.notebook->sent().size();
    std::this_thread::sleep_for(1ms);
    after.send("more");
  } while (after.notebook->sent().size() > sent);
}

TEST(FaultyTransport, AFrozenProcessGoesOnWhereItWas) {
  Under frozen("freeze worker0 at step 1 for 50ms");
  const auto begin = std::chrono::steady_clock::now();
  frozen.transport->reached(1);
  frozen.send("held");
  frozen.notebook->arrive("waits");  // blocks until the process goes on
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
  EXPECT_EQ(frozen.received, 1);
  EXPECT_EQ(frozen.notebook->wait(1), std::vector<std::string>{"held"});
}

// Not even a packet that was held back before, and falls due while it is frozen.
TEST(FaultyTransport, AFrozenProcessSendsNothing) {
  Under frozen("throttle 1kB/s; freeze worker0 at step 1 for 200ms");
  const auto begin = std::chrono::steady_clock::now();
  frozen.send(std::string(50, 'x'));  // due in 50 ms
  frozen.transport->reached(1);
  const bool was_held = frozen.notebook->sent().empty();  // else this machine was too slow to freeze it in time
  frozen.notebook->wait(1);
  if (was_held) {
    EXPECT_GE(std::chrono::steady_clock::now() - begin, 200ms);
  }
}

TEST(FaultyTransport, ItsNameMayComeLater) {
  Under unnamed("kill worker3 at step 1", "worker");
  unnamed.transport->reached(1);
  unnamed.send("alive");
  unnamed.transport->name_self("worker3");
  unnamed.transport->reached(2);
  unnamed.send("dead");
  EXPECT_EQ(unnamed.notebook->sent(), std::vector<std::string>{"alive"});
}

}  // namespace
}  // namespace paceline
