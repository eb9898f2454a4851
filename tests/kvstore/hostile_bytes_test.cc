// Bytes from strangers on a listening port: they are turned away or dropped, counted, and harm nobody.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <support/soon.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>
#include <random>

#include "cluster_in_process.h"
#include "hand_made_worker.h"
#include "refusal.h"
#include "transport/address.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using test::HandMadeWorker;
using test::job_config;
using test::member;
using test::soon;

// A bare TCP connection.
class Stranger {
 public:
  explicit Stranger(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Stranger() { ::close(fd_); }
  void say(const std::string& bytes) { (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // True when the other side hangs up in time.
  bool is_hung_up() {
    const timeval patience = {60, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char buffer[4096];
    for (;;) {
      const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
      if (got == 0) return true;
      if (got < 0) return errno != EAGAIN && errno != EWOULDBLOCK;
    }
  }

 private:
  int fd_;
};

std::string random_bytes(std::mt19937_64& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// What a ZMTP 3.0 peer says first, without security, as a DEALER.
std::string zmtp_greeting() {
  std::string greeting = "\xff";
  greeting += std::string(8, '\0');
  greeting += "\x7f\x03";
  greeting += std::string(1, '\0') + "NULL" + std::string(16, '\0') + std::string(1, '\0') + std::string(31, '\0');
  return greeting;
}
std::string zmtp_ready() {
  std::string body = std::string("\x05READY") + "\x0bSocket-Type" + std::string(3, '\0') + "\x06" + "DEALER";
  return std::string("\x04") + static_cast<char>(body.size()) + body;
}

class Rejections final : public TransportObserver {
 public:
  void on_send(LinkId, const Packet&) override {}
  void on_receive(LinkId, const Packet&) override { ++packets; }
  void on_reject(const std::string&) override { ++count; }
  std::atomic<int> count = 0, packets = 0;
};

TEST(HostileBytes, do_not_disturb_the_tcp_transport) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::atomic<int> good = 0;
  auto server = make_transport(Spec::parse("tcp:max_frame_bytes=1000000"));
  const auto rejections = std::make_shared<Rejections>();
  server->add_observer(rejections);
  server->on_receive([&](LinkId, const Packet& packet) {
    // Random bytes may be a packet of five bytes by chance, so its size says nothing.
    good += packet.size() == 1 && std::string(reinterpret_cast<const char*>(packet[0].data), packet[0].size) == "hello";
  });
  const std::string address = server->bind("127.0.0.1:0");
  const int port = parse_host_port(address).port;

  for (int i = 0; i < 60; ++i) {
    Stranger stranger(port);
    switch (i % 4) {
      case 0: stranger.say(random_bytes(random, random() % 3000)); break;
      case 1: stranger.say("GET / HTTP/1.1\r\nHost: here\r\n\r\n"); break;
      case 2: stranger.say(zmtp_greeting() + random_bytes(random, random() % 500)); break;
      default: stranger.say(zmtp_greeting() + zmtp_ready() + random_bytes(random, random() % 500)); break;
    }
  }
  // Not our handshake, and a frame that claims to be larger than any may be.
  Stranger wrong(port), large(port);
  wrong.say(zmtp_greeting() + std::string("\x04\x06\x05WRONG"));
  EXPECT_TRUE(wrong.is_hung_up());
  large.say(zmtp_greeting() + zmtp_ready() + std::string("\x02\x3f\xff\xff\xff\xff\xff\xff\xff", 9) + "data");
  EXPECT_TRUE(large.is_hung_up());
  EXPECT_TRUE(soon([&] { return rejections->count > 0; }));

  auto client = make_transport(Spec::parse("tcp"));
  const LinkId link = client->connect(address);
  client->send(link, {Frame::of("hello")});
  EXPECT_TRUE(soon([&] { return good > 0; }));
  EXPECT_EQ(good, 1);
}

TEST(HostileBytes, do_not_disturb_a_job) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  ClusterConfig job = job_config("tcp", 0, 1);
  job.role = Role::kScheduler;
  std::atomic<int> requests = 0;
  Node scheduler(job, {[&](const Request& request) {
                         ++requests;
                         request.reply({});
                       },
                       {}});
  std::thread thread([&] { scheduler.join(); });
  const std::string address = scheduler.scheduler_address();

  // Speaks the transport's protocol and begins as our messages do, now and then.
  std::atomic<int> answers = 0;
  auto stranger = make_transport(Spec::parse("tcp"));
  stranger->on_receive([&](LinkId, const Packet&) { ++answers; });
  const LinkId link = stranger->connect(address);
  Message message;
  message.body = "body";
  message.payload.push_back(Frame::of("payload"));
  const Packet good = encode(message);
  const std::string head(reinterpret_cast<const char*>(good[0].data), good[0].size);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = i % 3 == 0 ? random_bytes(random, random() % 200) : head;
    for (std::uint64_t changes = random() % 4; changes > 0 && !bytes.empty(); --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    Packet packet = {Frame::of(bytes)};
    if (random() % 2 == 0) packet.push_back(Frame::of(random_bytes(random, random() % 50)));
    stranger->send(link, packet);
  }
  const int port = parse_host_port(address).port;
  for (int i = 0; i < 20; ++i) Stranger(port).say(random_bytes(random, random() % 1000));
  for (int i = 0; i < 4000 && scheduler.malformed() < 20; ++i) std::this_thread::sleep_for(5ms);
  EXPECT_GE(scheduler.malformed(), 20);

  Node worker(member(job, Role::kWorker, port), {});
  worker.join();
  thread.join();
  message.header.kind = MessageKind::kGetFacts;
  worker.ask_and_wait({Role::kScheduler, 0}, message);
  EXPECT_EQ(requests, 1);
  worker.leave();
}

TEST(HostilePushes, OfMoreExamplesThanCanBeAddedUpAreRefused) {
  HandMadeWorker worker;
  wire::PushPullRequest push;
  push.set_examples(std::numeric_limits<std::int64_t>::max());
  EXPECT_THAT(test::error_of_call([&] { worker.ask(MessageKind::kPushPull, push); }),
              testing::HasSubstr("may come in one"));
}

TEST(HostileBytes, AnAddressNamesAHost) {
  for (const char* text : {"[]:80", "[[a]]:80", "[a:80", ":80", "a]:80"})
    EXPECT_THROW(parse_host_port(text), InvalidArgument) << text;
  EXPECT_EQ(parse_host_port("[::1]:80").host, "::1");
}

TEST(HostileBytes, ARefusalMayNameAnyKey) {
  const std::string text = "no key '\xff\xfe'";
  try {
    std::rethrow_exception(error_of(refusal_of(InvalidArgument(text))));
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.what(), text);
  }
}

}  // namespace
}  // namespace paceline
