// Large frames in a job with secrets: what travels by the second socket, and what a man in the middle can do there.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <kvstore/relay.h>
#include <paceline/error.h>
#include <paceline/mutex.h>
#include <paceline/transport.h>
#include <support/descriptor_limit.h>
#include <support/soon.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "secrets/job_secret.h"
#include "secrets/keyring.h"
#include "secrets/seal.h"
#include "transport/sealed_frames.h"

namespace paceline::test {
namespace {

using namespace std::chrono_literals;
using sealed::kHeadBytes;
using test::soon;

TEST(SealingKey, equal_pieces_do_not_look_equal_and_no_change_goes_unnoticed) {
  const SealingKey key(SealingKey::draw()), other(SealingKey::draw());
  const std::string plain(100, 'p');
  const auto* bytes = reinterpret_cast<const std::byte*>(plain.data());
  std::set<std::string> seen;
  std::vector<std::byte> sealed(plain.size() + kTagBytes), opened(plain.size());
  for (std::uint64_t number = 0; number < 100; ++number) {
    key.seal(number, "about", bytes, plain.size(), sealed.data());
    for (std::size_t at = 0; at + 16 <= plain.size(); at += 16)
      EXPECT_TRUE(seen.emplace(reinterpret_cast<const char*>(sealed.data() + at), 16).second);
    ASSERT_TRUE(key.open(number, "about", sealed.data(), plain.size(), opened.data()));
    EXPECT_EQ(std::memcmp(opened.data(), plain.data(), plain.size()), 0);
  }
  EXPECT_FALSE(key.open(98, "about", sealed.data(), plain.size(), opened.data()));
  EXPECT_FALSE(key.open(99, "About", sealed.data(), plain.size(), opened.data()));
  EXPECT_FALSE(other.open(99, "about", sealed.data(), plain.size(), opened.data()));
  EXPECT_FALSE(key.open(99, "about", sealed.data(), plain.size() - 1, opened.data()));
  for (std::byte& byte : sealed) {
    byte ^= std::byte{16};
    EXPECT_FALSE(key.open(99, "about", sealed.data(), plain.size(), opened.data()));
    byte ^= std::byte{16};
  }
  EXPECT_TRUE(key.open(99, "about", sealed.data(), plain.size(), opened.data()));
}

struct Counts final : TransportObserver {
  void on_send(LinkId, const Packet&) override {}
  void on_receive(LinkId, const Packet&) override {}
  void on_reject(const std::string&) override { ++rejected; }
  std::atomic<int> rejected = 0;
};

// A client and a server, both of whose sockets are reached through relays. Packets are a text and a frame that is
// large.
class OnThePath : public testing::Test {
 protected:
  OnThePath() {
    const std::vector<int> before = listening_ports();
    server_->use_keys(std::make_shared<Keyring>(kSecret, true));
    client_->use_keys(client_keys_);
    server_->add_observer(counts_);
    server_->on_receive([this](LinkId link, Packet packet) { take(at_server_, link, std::move(packet)); });
    client_->on_receive([this](LinkId link, Packet packet) { take(at_client_, link, std::move(packet)); });
    const std::string address = server_->bind("127.0.0.1:0");
    port_ = std::stoi(address.substr(address.rfind(':') + 1));
    for (const int listening : listening_ports())
      if (listening != port_ && std::find(before.begin(), before.end(), listening) == before.end()) second_ = listening;
    control_relay_ = std::make_unique<Relay>(port_);
    bulk_relay_ = std::make_unique<Relay>(second_);
    link_ = new_link();
  }

  LinkId new_link() { return client_->connect("127.0.0.2:" + std::to_string(port_), client_keys_->scheduler_key()); }
  static Packet packet(const std::string& text, std::size_t bytes = kBytes) {
    return {Frame::of(text), Frame::of(std::string(bytes, 'p'))};
  }
  // Sends until large frames go by the second socket in this direction.
  void open_second_socket() {
    ASSERT_TRUE(soon([&] {
      send_little("warm");
      return bulk_bytes() > kBytes;
    }));
  }
  // Less than CURVE can carry, so that no queue grows.
  void send_little(const std::string& text) {
    client_->send(link_, packet(text, 200000));
    std::this_thread::sleep_for(10ms);
  }
  std::size_t bulk_bytes() const {
    std::size_t bytes = 0;
    for (const std::string& stream : bulk_relay_->forth()) bytes += stream.size();
    return bytes;
  }
  std::vector<std::string> texts(const std::vector<std::string>& of) {
    const Lock lock(mutex_);
    return of;
  }
  bool has(const std::vector<std::string>& of, const std::string& text) {
    const auto all = texts(of);
    return std::find(all.begin(), all.end(), text) != all.end();
  }

  static constexpr std::size_t kBytes = 3 << 20;
  const std::string kSecret = std::string(kSecretBytes, 's');
  const std::shared_ptr<Keyring> client_keys_ = std::make_shared<Keyring>(kSecret, false);
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  Mutex mutex_;
  std::vector<std::string> at_server_, at_client_;
  std::atomic<LinkId> back_ = 0;
  int port_ = 0, second_ = 0;
  std::unique_ptr<Relay> control_relay_, bulk_relay_;
  std::unique_ptr<Transport> server_ = make_transport(Spec::parse("tcp")), client_ = make_transport(Spec::parse("tcp"));
  LinkId link_ = 0;

 private:
  void take(std::vector<std::string>& list, LinkId link, Packet packet) {
    ASSERT_EQ(packet.size(), 2u);
    const auto* bytes = reinterpret_cast<const char*>(packet[1].data);
    EXPECT_TRUE(std::all_of(bytes, bytes + packet[1].size, [](char c) { return c == 'p'; }));
    if (&list == &at_server_) back_ = link;
    const Lock lock(mutex_);
    list.emplace_back(reinterpret_cast<const char*>(packet[0].data), packet[0].size);
  }
};

// The pieces in one direction of a connection to the second socket: heads and ciphertexts.
std::vector<std::string> pieces_in(const std::string& stream) {
  std::vector<std::string> pieces;
  std::size_t at = 64;  // ZMTP 3.1: a greeting, then frames of flags, length and content
  while (at + 2 <= stream.size()) {
    const auto flags = static_cast<unsigned char>(stream[at]);
    std::size_t size = static_cast<unsigned char>(stream[at + 1]), head = 2;
    if ((flags & 2) != 0) {
      if (at + 9 > stream.size()) break;
      size = 0;
      for (int i = 1; i <= 8; ++i) size = size << 8 | static_cast<unsigned char>(stream[at + i]);
      head = 9;
    }
    if (at + head + size > stream.size()) break;
    if ((flags & 4) == 0 && size > kHeadBytes) pieces.push_back(stream.substr(at + head, size));
    at += head + size;
  }
  return pieces;
}

TEST_F(OnThePath, nothing_of_a_frame_shows_and_no_number_comes_twice) {
  open_second_socket();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5; ++i) {
      client_->send(link_, packet(str("to server ", round, ".", i)));
      server_->send(back_, packet(str("to client ", round, ".", i)));
    }
    ASSERT_TRUE(soon([&] { return has(at_server_, str("to server ", round, ".4")); }));
    ASSERT_TRUE(soon([&] { return has(at_client_, str("to client ", round, ".4")); }));
    const int before = bulk_relay_->connections();
    bulk_relay_->cut();
    ASSERT_TRUE(soon([&] {
      send_little("renew");
      return bulk_relay_->connections() > before;
    }));
    // What the server sends before it notices the cut is lost.
    ASSERT_TRUE(soon([&] {
      server_->send(back_, packet(str("noticed ", round), 200000));
      std::this_thread::sleep_for(10ms);
      return has(at_client_, str("noticed ", round));
    }));
  }
  const std::string shown(64, 'p');
  for (const Relay* relay : {control_relay_.get(), bulk_relay_.get()})
    for (const auto& streams : {relay->forth(), relay->back()})
      for (const std::string& stream : streams) EXPECT_EQ(stream.find(shown), std::string::npos);
  // All pieces have equal plaintexts.
  for (const auto& streams : {bulk_relay_->forth(), bulk_relay_->back()}) {
    std::set<std::string> heads, blocks;
    std::size_t count = 0;
    for (const std::string& stream : streams)
      for (const std::string& piece : pieces_in(stream)) {
        ++count;
        EXPECT_TRUE(heads.insert(piece.substr(0, kHeadBytes)).second);
        for (std::size_t at = kHeadBytes; at + 1024 <= piece.size(); at += 65536)
          EXPECT_TRUE(blocks.insert(piece.substr(at, 16)).second);
      }
    EXPECT_GE(count, 20u);
  }
}

TEST_F(OnThePath, packets_below_128_kb_travel_in_curve_and_in_their_turn) {
  open_second_socket();
  send_little("settled");
  ASSERT_TRUE(soon([&] { return has(at_server_, "settled"); }));
  const std::size_t before = bulk_bytes();
  for (int i = 100; i < 110; ++i) client_->send(link_, packet(str(i), 100000));
  ASSERT_TRUE(soon([&] { return has(at_server_, "109"); }));
  EXPECT_LT(bulk_bytes() - before, 100000u);
  for (int i = 110; i < 130; ++i) client_->send(link_, packet(str(i), i % 2 == 0 ? 100000 : 200000));
  ASSERT_TRUE(soon([&] { return has(at_server_, "129"); }));
  EXPECT_GT(bulk_bytes() - before, 10 * 200000u);
  std::vector<std::string> numbered = texts(at_server_);
  numbered.erase(numbered.begin(), std::find(numbered.begin(), numbered.end(), "100"));
  EXPECT_EQ(numbered.size(), 30u);
  EXPECT_TRUE(std::is_sorted(numbered.begin(), numbered.end()));
}

TEST_F(OnThePath, packets_keep_their_order_when_the_second_socket_is_cut) {
  open_second_socket();
  const auto arrived = [&] {
    const Lock lock(mutex_);
    return at_server_.back();
  };
  std::jthread sender([&](const std::stop_token& stop) {
    for (int i = 200000; !stop.stop_requested(); ++i) {
      client_->send(link_, packet(str(i), i % 2 == 0 ? 200000 : 100));
      std::this_thread::sleep_for(1ms);
      // A HELLO waits behind what CURVE has to carry, so little is on its way. What a cut took never arrives.
      for (int waited = 0; waited < 100 && arrived() < str(i - 50); ++waited) std::this_thread::sleep_for(1ms);
    }
  });
  for (int cut = 0; cut < 5; ++cut) {
    ASSERT_TRUE(soon([&] { return bulk_relay_->forth().back().size() > kBytes; }));
    const std::size_t before = texts(at_server_).size();
    const int connections = bulk_relay_->connections();
    bulk_relay_->cut();
    ASSERT_TRUE(soon([&] { return bulk_relay_->connections() > connections; }));
    ASSERT_TRUE(soon([&] { return texts(at_server_).size() > before + 50; }));
  }
  sender.request_stop();
  sender.join();
  std::vector<std::string> got = texts(at_server_);
  std::erase(got, "warm");
  EXPECT_TRUE(std::is_sorted(got.begin(), got.end()));
}

TEST_F(OnThePath, a_damaged_piece_is_refused_and_what_comes_later_arrives) {
  open_second_socket();
  const int before = counts_->rejected;
  bulk_relay_->damage_next();
  ASSERT_TRUE(soon([&] {
    send_little("damaged");
    return counts_->rejected > before;
  }));
  ASSERT_TRUE(soon([&] {
    send_little("after");
    return has(at_server_, "after");
  }));
}

TEST_F(OnThePath, a_token_is_good_for_one_connection) {
  open_second_socket();
  const std::string stream = bulk_relay_->forth().at(0);
  const std::size_t at = stream.find("HELLO");  // of PLAIN: name and password, each after its length
  ASSERT_NE(at, std::string::npos);
  const int before = counts_->rejected;
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to = address_of("127.0.0.1", second_);
  ASSERT_EQ(connect(connection, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  ASSERT_GT(send(connection, stream.data(), std::min<std::size_t>(stream.size(), 60000), MSG_NOSIGNAL), 0);
  EXPECT_TRUE(soon([&] { return counts_->rejected > before; }));
  close(connection);
}

TEST_F(OnThePath, a_lost_hello_is_said_again_when_the_other_side_sends) {
  open_second_socket();
  server_->send(back_, packet("before"));
  ASSERT_TRUE(soon([&] { return has(at_client_, "before"); }));
  control_relay_->swallow();
  bulk_relay_->cut();
  ASSERT_TRUE(soon([&] { return control_relay_->swallowed() > 0; }));
  control_relay_->cut();
  ASSERT_TRUE(soon([&] {
    server_->send(back_, packet("after", 200000));
    std::this_thread::sleep_for(10ms);
    return has(at_client_, "after");
  }));
}

TEST_F(OnThePath, the_second_socket_opens_where_an_answer_takes_long) {
  open_second_socket();
  const int connections = bulk_relay_->connections();
  control_relay_->delay(1500ms);
  bulk_relay_->cut();
  ASSERT_TRUE(soon([&] {
    send_little("again");
    return bulk_relay_->connections() > connections && bulk_relay_->forth().back().size() > kBytes;
  }));
  EXPECT_EQ(bulk_relay_->connections(), connections + 1);
}

TEST_F(OnThePath, a_link_that_the_server_closed_carries_answers_again) {
  open_second_socket();
  for (int i = 0; i < 20; ++i) server_->send(back_, packet(str("before ", i)));
  ASSERT_TRUE(soon([&] { return has(at_client_, "before 19"); }));
  const int connections = bulk_relay_->connections();
  server_->close(back_);
  ASSERT_TRUE(soon([&] {
    send_little("again");
    return bulk_relay_->connections() > connections && bulk_relay_->forth().back().size() > kBytes;
  }));
  // When the last one has arrived, `back_` is the new link.
  client_->send(link_, packet("last", 200000));
  ASSERT_TRUE(soon([&] { return has(at_server_, "last"); }));
  const int rejected = counts_->rejected;
  server_->send(back_, packet("after"));  // once: its numbers begin anew
  EXPECT_TRUE(soon([&] { return has(at_client_, "after"); }));
  EXPECT_EQ(counts_->rejected, rejected);
}

// Each answer takes 15 seconds. One that comes 24 seconds after the attempt was sent 9 seconds after it.
TEST(SealedSession, an_answer_as_late_as_the_first_does_not_void_the_second_socket) {
  sealed::Session session;
  session.said = std::chrono::steady_clock::now();
  session.dialled = session.said + 15s;
  session.bulk = 1;
  EXPECT_FALSE(session.is_unreached(session.dialled + 24s));
  EXPECT_TRUE(session.is_unreached(session.dialled + 26s));
}

// Leaves this process a few file descriptors.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t left) {
    for (int descriptor; (descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken_.push_back(descriptor);
    for (; left > 0 && !taken_.empty(); --left) {
      close(taken_.back());
      taken_.pop_back();
    }
  }
  ~FewDescriptors() {
    for (const int descriptor : taken_) close(descriptor);
  }
  FewDescriptors(const FewDescriptors&) = delete;

 private:
  const test::DescriptorLimit limit_{1000};
  std::vector<int> taken_;
};

// Each link makes its attempt with another number of descriptors: how many a connection takes before it asks for the
// one of TCP depends on the version of ZeroMQ.
TEST_F(OnThePath, the_second_socket_opens_when_there_are_descriptors_again) {
  constexpr std::size_t kSmall = 100, kLarge = 200000;
  const auto arrives = [&](LinkId link, const std::string& text, std::size_t bytes) {
    client_->send(link, packet(text, bytes));
    return soon([&] { return has(at_server_, text); });
  };
  std::vector<LinkId> links{link_};
  while (links.size() < 5) links.push_back(new_link());
  for (const LinkId link : links) ASSERT_TRUE(arrives(link, str("settled ", link), kSmall));
  for (std::size_t left = 0; left < links.size(); ++left) {
    const FewDescriptors descriptors(left);
    ASSERT_TRUE(arrives(links[left], str("without ", left), kLarge));
    server_->send(back_, packet(str("back ", left), kSmall));  // after the answer to HELLO
    ASSERT_TRUE(soon([&] { return has(at_client_, str("back ", left)); }));
    ASSERT_TRUE(arrives(links[left], str("still without ", left), kLarge));
  }
  // A new round begins ten seconds after the attempt.
  for (const LinkId link : links) {
    bool opened = false;
    for (int i = 0; i < 600 && !opened; ++i) {
      const std::size_t before = bulk_bytes();
      ASSERT_TRUE(arrives(link, str("again ", link, ".", i), kLarge));
      opened = bulk_bytes() - before > kLarge;
      if (!opened) std::this_thread::sleep_for(100ms);
    }
    EXPECT_TRUE(opened) << "link " << link;
  }
}

TEST_F(OnThePath, without_a_way_to_the_second_socket_large_frames_travel_in_curve) {
  bulk_relay_.reset();
  for (int i = 0; i < 3; ++i) {
    client_->send(link_, packet(str("to server ", i)));
    ASSERT_TRUE(soon([&] { return has(at_server_, str("to server ", i)); }));
    server_->send(back_, packet(str("to client ", i)));
    ASSERT_TRUE(soon([&] { return has(at_client_, str("to client ", i)); }));
  }
}

}  // namespace
}  // namespace paceline::test
