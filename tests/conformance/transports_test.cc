// What every transport promises; the suite walks the table, so a new one is tested by being listed. The faulty
// decorator without faults must keep the promises too.

#include <gmock/gmock.h>
#include <paceline/detail/host_memory.h>
#include <paceline/error.h>
#include <paceline/mutex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <thread>

#include "faults/faulty_transport.h"
#include "secrets/keyring.h"
#include "transport/transport_catalog.h"
#include "transport/transport_setting.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

std::string text_of(const Frame& frame) { return {reinterpret_cast<const char*>(frame.data), frame.size}; }
Packet packet_of(const std::string& text) { return {Frame::of(text)}; }

// Keeps what arrives, and by which link.
class Received {
 public:
  Transport::Handler handler() {
    return [this](LinkId link, Packet packet) {
      const Lock lock(mutex_);
      packets_.emplace_back(link, std::move(packet));
      changed_.notify_all();
    };
  }
  // Empty when `count` packets did not come in time.
  std::vector<std::pair<LinkId, Packet>> wait(std::size_t count) {
    const Lock lock(mutex_);
    if (!changed_.wait_for(mutex_, 20s, [&] { return packets_.size() >= count; })) return {};
    return packets_;
  }
  std::size_t count() {
    const Lock lock(mutex_);
    return packets_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::pair<LinkId, Packet>> packets_;
};

struct Kind {
  std::string transport;
  bool decorated = false, keyed = false;
};
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest finds it by this name
void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.transport << (kind.decorated ? "_faulty" : "") << (kind.keyed ? "_keyed" : "");
}

// Has a key, and knows that of its peers: all listen as a scheduler does.
class Keyed final : public Transport {
 public:
  explicit Keyed(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) { inner_->use_keys(keyring_); }
  std::string bind(const std::string& address) override { return inner_->bind(address); }
  LinkId connect(const std::string& address, const std::string&) override {
    return inner_->connect(address, keyring_->scheduler_key());
  }
  void send(LinkId link, Packet packet) override { inner_->send(link, std::move(packet)); }
  void close(LinkId link) override { inner_->close(link); }
  std::string describe(LinkId link) override { return inner_->describe(link); }
  void on_receive(Handler handler) override { inner_->on_receive(std::move(handler)); }
  void add_observer(std::shared_ptr<TransportObserver> observer) override { inner_->add_observer(std::move(observer)); }

 private:
  const std::shared_ptr<Keyring> keyring_ = std::make_shared<Keyring>(std::string(32, 's'), true);
  const std::unique_ptr<Transport> inner_;
};

std::vector<Kind> every_kind() {
  std::vector<Kind> kinds;
  for (const auto& [name, factory] : transport_catalog().entries())
    for (bool decorated : {false, true}) kinds.push_back({name, decorated});
  for (const char* name : {"shm", "tcp"}) kinds.push_back({name, false, true});
  return kinds;
}

class Transports : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Transport> make() {
    auto transport = make_transport(Spec::parse(GetParam().transport));
    if (GetParam().keyed) return std::make_unique<Keyed>(std::move(transport));
    return GetParam().decorated ? make_faulty_transport(std::move(transport), {}, "worker0", false)
                                : std::move(transport);
  }
  static std::string own_loopback() {
    // Short: ThreadSanitizer does not see how ZeroMQ's threads hand over a string that needs memory of its own.
    const int pid = getpid();
    return str("127.", 1 + pid / 100 % 9, '.', pid / 10 % 10, '.', pid % 10);
  }
  // An address to bind to, where the transport chooses the rest. The host address depends on the process's number, so
  // that no other test takes a port that was let go.
  std::string anywhere() {
    static std::atomic<int> count = 0;
    return TransportSetting::parse(GetParam().transport).in_process() ? "place " + std::to_string(++count)
                                                                      : own_loopback() + ":0";
  }
};

INSTANTIATE_TEST_SUITE_P(Every, Transports, testing::ValuesIn(every_kind()), testing::PrintToStringParamName());

TEST_P(Transports, packets_of_a_link_arrive_in_order_and_are_answered_by_it) {
  Received at_server, at_client;
  auto server = make(), client = make();
  server->on_receive([&](LinkId from, Packet packet) {
    server->send(from, packet);
    at_server.handler()(from, std::move(packet));
  });
  client->on_receive(at_client.handler());
  const LinkId link = client->connect(server->bind(anywhere()));
  for (int i = 0; i < 5000; ++i) client->send(link, packet_of(std::to_string(i)));
  for (Received* received : {&at_server, &at_client}) {
    const auto packets = received->wait(5000);
    ASSERT_EQ(packets.size(), 5000u);
    for (int i = 0; i < 5000; ++i) {
      ASSERT_EQ(text_of(packets[i].second[0]), std::to_string(i));
      ASSERT_EQ(packets[i].first, packets[0].first);
    }
  }
  EXPECT_EQ(at_client.wait(1)[0].first, link);
}

TEST_P(Transports, frames_of_any_size_keep_their_bounds) {
  Received received;
  auto server = make(), client = make();
  server->on_receive(received.handler());
  const LinkId link = client->connect(server->bind(anywhere()));
  std::vector<Packet> sent = {{Frame{}}, {Frame{}, Frame::of("a"), Frame{}}, {}, packet_of(std::string(64 << 20, 'x'))};
  for (const std::size_t size : {1, 32, 33, 34, 255, 256, 1023, 1024, 1025, 8191, 8192, 8193, 1 << 20})
    sent[2].push_back(Frame::of(std::string(size, static_cast<char>('a' + size % 26))));
  for (const Packet& packet : sent) client->send(link, packet);
  const auto packets = received.wait(sent.size());
  ASSERT_EQ(packets.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    ASSERT_EQ(packets[i].second.size(), sent[i].size());
    for (std::size_t f = 0; f < sent[i].size(); ++f) {
      ASSERT_EQ(packets[i].second[f].size, sent[i][f].size);
      ASSERT_TRUE(text_of(packets[i].second[f]) == text_of(sent[i][f])) << "frame " << f << " of packet " << i;
    }
  }
}

TEST_P(Transports, a_sent_frame_is_let_go) {
  Received received;
  auto server = make(), client = make();
  server->on_receive([&](LinkId from, const Packet&) { received.handler()(from, {}); });
  const LinkId link = client->connect(server->bind(anywhere()));
  auto owner = std::make_shared<std::string>(100000, 'x');
  const std::weak_ptr<std::string> watch = owner;
  const auto* data = reinterpret_cast<const std::byte*>(owner->data());
  client->send(link, {{std::move(owner), data, 100000}});
  ASSERT_EQ(received.wait(1).size(), 1u);
  for (int i = 0; i < 12000 && !watch.expired(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(watch.expired());
}

TEST_P(Transports, a_frame_that_may_change_arrives_as_it_was) {
  Received at_server, at_client;
  auto server = make(), client = make();
  server->on_receive([&](LinkId from, Packet packet) {
    server->send(from, packet_of("here"));
    at_server.handler()(from, std::move(packet));
  });
  client->on_receive(at_client.handler());
  const LinkId link = client->connect(server->bind(anywhere()));
  client->send(link, packet_of("hello"));
  ASSERT_EQ(at_client.wait(1).size(), 1u);  // shm shares memory from now on
  const std::string before(1 << 20, 'a');
  const std::shared_ptr<std::byte[]> memory = detail::allocate_host(before.size());
  std::memcpy(memory.get(), before.data(), before.size());
  client->send(link, {Frame::of("head"), {memory, memory.get(), before.size(), true}});
  const auto packets = at_server.wait(2);
  ASSERT_EQ(packets.size(), 2u);
  std::memset(memory.get(), 'b', before.size());
  EXPECT_TRUE(text_of(packets[1].second.at(1)) == before);
}

TEST_P(Transports, many_peers_and_threads_send_at_once) {
  constexpr int kPeers = 20, kPackets = 200;
  Received received;
  auto server = make();
  server->on_receive(received.handler());
  const std::string address = server->bind(anywhere());
  std::vector<std::unique_ptr<Transport>> peers;
  peers.reserve(kPeers);
  std::vector<std::thread> threads;
  for (int p = 0; p < kPeers; ++p) {
    peers.push_back(make());
    const LinkId link = peers.back()->connect(address);
    for (int half = 0; half < 2; ++half)
      threads.emplace_back([&, p, link, half] {
        for (int i = 0; i < kPackets; ++i)
          peers[p]->send(link, {Frame::of(std::to_string(2 * p + half)), Frame::of(std::to_string(i))});
      });
  }
  for (std::thread& thread : threads) thread.join();
  const auto packets = received.wait(2 * kPeers * kPackets);
  ASSERT_EQ(packets.size(), std::size_t{2 * kPeers * kPackets});
  std::map<std::string, int> next;
  std::map<int, LinkId> link_of;
  for (const auto& [link, packet] : packets) {
    EXPECT_EQ(text_of(packet[1]), std::to_string(next[text_of(packet[0])]++));
    EXPECT_EQ(link_of.emplace(std::stoi(text_of(packet[0])) / 2, link).first->second, link);
  }
  EXPECT_EQ(link_of.size(), std::size_t{kPeers});
}

TEST_P(Transports, what_is_sent_before_the_peer_binds_waits_for_it) {
  std::string address = anywhere();
  if (GetParam().transport != "inproc") address = make()->bind(address);
  Received received;
  auto client = make();
  const LinkId link = client->connect(address);
  for (int i = 0; i < 10; ++i) client->send(link, packet_of(std::to_string(i)));
  std::this_thread::sleep_for(50ms);
  auto server = make();
  server->on_receive(received.handler());
  server->bind(address);
  const auto packets = received.wait(10);
  ASSERT_EQ(packets.size(), 10u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(text_of(packets[i].second[0]), std::to_string(i));
}

TEST_P(Transports, a_link_finds_a_peer_that_was_restarted) {
  Received first, second;
  auto client = make();
  auto server = make();
  server->on_receive(first.handler());
  const std::string address = server->bind(anywhere());
  const LinkId link = client->connect(address);
  client->send(link, packet_of("one"));
  ASSERT_EQ(first.wait(1).size(), 1u);
  server.reset();
  server = make();
  server->on_receive(second.handler());
  server->bind(address);
  for (int i = 0; i < 4000 && second.count() == 0; ++i) {  // what was sent into the broken connection may be lost
    client->send(link, packet_of("two"));
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_GT(second.count(), 0u);
}

TEST_P(Transports, a_closed_link_is_silent_and_others_go_on) {
  Received received;
  auto server = make(), client = make();
  server->on_receive(received.handler());
  const std::string address = server->bind(anywhere());
  const LinkId closed = client->connect(address), open = client->connect(address);
  client->send(closed, packet_of("before"));
  ASSERT_EQ(received.wait(1).size(), 1u);
  client->close(closed);
  client->close(closed);
  client->send(closed, packet_of("after"));
  client->send(12345678, packet_of("unknown"));
  client->send(open, packet_of("open"));
  const auto packets = received.wait(2);
  ASSERT_EQ(packets.size(), 2u);
  EXPECT_EQ(text_of(packets[1].second[0]), "open");
  server->send(packets[0].first, packet_of("nobody listens"));
}

TEST_P(Transports, a_peer_that_was_hung_up_on_may_come_back) {
  Received received;
  auto server = make(), client = make();
  server->on_receive(received.handler());
  const LinkId link = client->connect(server->bind(anywhere()));
  client->send(link, packet_of("first"));
  const auto packets = received.wait(1);
  ASSERT_EQ(packets.size(), 1u);
  EXPECT_THAT(server->describe(packets[0].first), testing::Not(testing::IsEmpty()));
  server->close(packets[0].first);
  LinkId latest = packets[0].first;
  for (int i = 0; i < 4000 && latest == packets[0].first; ++i) {
    client->send(link, packet_of("again"));
    std::this_thread::sleep_for(5ms);
    if (received.count() > 1) latest = received.wait(2).back().first;
  }
  EXPECT_NE(latest, packets[0].first);
}

TEST_P(Transports, a_dead_peer_does_not_hold_up_the_others) {
  Received received;
  auto server = make(), client = make();
  server->on_receive(received.handler());
  auto dead = make();
  const LinkId to_dead = client->connect(dead->bind(anywhere()));
  const LinkId link = client->connect(server->bind(anywhere()));  // before the port of `dead` is free again
  dead.reset();
  const Frame large = Frame::of(std::string(1 << 20, 'x'));
  for (int i = 0; i < 300; ++i) client->send(to_dead, {large});
  client->send(link, packet_of("alive"));
  EXPECT_EQ(received.wait(1).size(), 1u);
}

TEST_P(Transports, ends_in_the_middle_of_traffic) {
  for (int round = 0; round < 5; ++round) {
    auto server = make(), client = make();
    std::atomic<bool> destroyed = false, late = false, stop = false;
    server->on_receive([&, to = server.get()](LinkId from, Packet packet) {
      if (destroyed) late = true;
      to->send(from, std::move(packet));
    });
    client->on_receive([](LinkId, const Packet&) {});
    const LinkId link = client->connect(server->bind(anywhere()));
    std::thread sender([&, to = client.get()] {
      for (int i = 0; i < 20000 && !stop; ++i) to->send(link, packet_of(std::string(i % 3000, 'x')));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    server.reset();
    destroyed = true;
    std::this_thread::sleep_for(2ms);
    stop = true;
    sender.join();
    client.reset();
    EXPECT_FALSE(late);
  }
}

// Interrupts every thread of the process again and again. The signal stays harmless: some may not have come yet.
class Signals {
 public:
  Signals() {
    struct sigaction nothing = {};
    nothing.sa_handler = [](int) {};
    sigaction(SIGUSR1, &nothing, nullptr);
    thread_ = std::thread([this] {
      while (!stop_)
        for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
          syscall(SYS_tgkill, getpid(), std::stoi(thread.path().filename()), SIGUSR1);
    });
  }
  ~Signals() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST_P(Transports, signals_do_no_harm) {
  constexpr std::size_t kPackets = 8000;
  const Signals signals;
  Received received;
  auto server = make(), client = make();
  server->on_receive([&](LinkId from, const Packet& packet) { server->send(from, packet); });
  client->on_receive(received.handler());
  const LinkId link = client->connect(server->bind(anywhere()));
  const Frame rest = Frame::of(std::string(2000, 'x'));
  for (std::size_t i = 0; i < kPackets; ++i) client->send(link, {Frame::of(std::to_string(i)), rest});
  const auto packets = received.wait(kPackets);
  ASSERT_EQ(packets.size(), kPackets);
  for (std::size_t i = 0; i < kPackets; ++i) {
    ASSERT_EQ(packets[i].second.size(), 2u);
    ASSERT_EQ(text_of(packets[i].second[0]), std::to_string(i));
    ASSERT_EQ(packets[i].second[1].size, rest.size);
  }
}

TEST_P(Transports, an_address_is_bound_once) {
  auto first = make(), second = make();
  const std::string address = first->bind(anywhere());
  try {
    second->bind(address);
    FAIL() << "bound twice";
  } catch (const NetworkError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(address), testing::HasSubstr("choose another")));
  }
  first.reset();
  EXPECT_EQ(second->bind(address), address);
}

// As a request does that is dropped unanswered, whose message a frame holds.
TEST_P(Transports, the_owner_of_a_dropped_frame_may_send) {
  std::promise<void> sent;
  auto transport = make_transport(Spec::parse(GetParam().transport));
  if (GetParam().decorated)
    transport = make_faulty_transport(std::move(transport), FaultPlan::parse("delay 1ms"), "worker0", false);
  constexpr LinkId kUnknown = 1 << 20;
  const auto owner = [&](const char*) {
    transport->send(kUnknown, packet_of("answer"));
    sent.set_value();
  };
  Frame frame;
  frame.owner = std::shared_ptr<const char>("x", owner);
  frame.data = reinterpret_cast<const std::byte*>(frame.owner.get());
  frame.size = 1;
  transport->send(kUnknown, {std::move(frame)});
  sent.get_future().wait();
}

class ByteCount final : public TransportObserver {
 public:
  void on_send(LinkId, const Packet& packet) override { sent += size(packet); }
  void on_receive(LinkId, const Packet& packet) override { received += size(packet); }
  std::atomic<std::size_t> sent = 0, received = 0;

 private:
  static std::size_t size(const Packet& packet) {
    std::size_t bytes = 0;
    for (const Frame& frame : packet) bytes += frame.size;
    return bytes;
  }
};

TEST_P(Transports, observers_see_every_byte) {
  Received received;
  const auto at_server = std::make_shared<ByteCount>(), at_client = std::make_shared<ByteCount>();
  auto server = make(), client = make();
  server->add_observer(at_server);
  client->add_observer(at_client);
  server->on_receive(received.handler());
  const LinkId link = client->connect(server->bind(anywhere()));
  for (int i = 0; i < 10; ++i) client->send(link, {Frame::of("12345"), Frame::of(std::string(5000, 'x'))});
  ASSERT_EQ(received.wait(10).size(), 10u);
  EXPECT_EQ(at_client->sent, 50050u);
  EXPECT_EQ(at_server->received, 50050u);
  EXPECT_EQ(at_server->sent, 0u);
}

TEST(Transport, unknown_names_and_options_list_the_known_ones) {
  try {
    make_transport(Spec::parse("rdma"));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("unknown transport 'rdma'; known: inproc shm tcp"));
  }
  EXPECT_THROW(make_transport(Spec::parse("tcp:threads=2")), InvalidArgument);
}

}  // namespace
}  // namespace paceline
