#include "message.h"

#include <gmock/gmock.h>
#include <paceline/error.h>

#include <cstring>
#include <random>

namespace paceline {
namespace {

Message sample(MessageKind kind, std::string body, const std::vector<std::string>& payload) {
  Message message;
  message.header = {kind, 0x1122334455667788, 77, 1234567890123, 5};
  message.body = std::move(body);
  for (const std::string& text : payload) message.payload.push_back(Frame::of(text));
  return message;
}

std::string bytes_of(const Frame& frame) { return {reinterpret_cast<const char*>(frame.data), frame.size}; }

void expect_equal(const Message& a, const Message& b) {
  EXPECT_EQ(a.header.kind, b.header.kind);
  EXPECT_EQ(a.header.job, b.header.job);
  EXPECT_EQ(a.header.incarnation, b.header.incarnation);
  EXPECT_EQ(a.header.request, b.header.request);
  EXPECT_EQ(a.header.epoch, b.header.epoch);
  EXPECT_EQ(a.body, b.body);
  ASSERT_EQ(a.payload.size(), b.payload.size());
  for (std::size_t i = 0; i < a.payload.size(); ++i) EXPECT_EQ(bytes_of(a.payload[i]), bytes_of(b.payload[i]));
}

TEST(Message, comes_back_as_it_was_encoded) {
  for (const Message& message :
       {sample(MessageKind::kReply, "", {}), sample(MessageKind::kPushPull, "body", {"one", ""}),
        sample(MessageKind::kLoad, std::string(100000, 'x'), {std::string(1 << 20, 'y')})})
    expect_equal(message, decode(encode(message)));
}

TEST(Message, payload_is_shared_not_copied) {
  const Message message = sample(MessageKind::kPushPull, "", {"payload"});
  const Packet packet = encode(message);
  EXPECT_EQ(packet[1].data, message.payload[0].data);
  EXPECT_EQ(decode(packet).payload[0].data, message.payload[0].data);
}

TEST(Message, head_has_the_layout_that_is_drawn) {
  const Packet packet = encode(sample(MessageKind::kBarrier, "AB", {"xyz"}));
  const unsigned char expected[] = {'P',  'C', 'L', 1, 2, 17, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22,
                                    0x11, 77,  0,   0, 0, 0,  0, 0, 0,    0xcb, 0x04, 0xfb, 0x71, 0x1f, 0x01,
                                    0,    0,   5,   0, 0, 0,  0, 0, 0,    0,    2,    0,    0,    0,    1,
                                    0,    0,   0,   3, 0, 0,  0, 0, 0,    0,    0,    0,    0,    0,    0,
                                    0,    0,   0,   0, 0, 0,  0, 0, 0,    0,    0,    0,    'A',  'B'};
  ASSERT_EQ(packet[0].size, sizeof(expected));
  EXPECT_EQ(std::memcmp(packet[0].data, expected, sizeof(expected)), 0);
}

TEST(Message, says_what_is_wrong_with_a_packet) {
  const Packet good = encode(sample(MessageKind::kBarrier, "AB", {"xyz"}));
  const auto error = [&](auto change) {
    std::string head = bytes_of(good[0]);
    Packet packet = good;
    change(head, packet);
    packet[0] = Frame::of(head);
    try {
      decode(packet);
    } catch (const Corrupt& corrupt) {
      return std::string(corrupt.what());
    }
    return std::string("accepted");
  };
  using testing::HasSubstr;
  EXPECT_THAT(error([](std::string& head, Packet&) { head.resize(20); }), HasSubstr("20 bytes, expected at least"));
  EXPECT_THAT(error([](std::string& head, Packet&) { head[0] = 'Q'; }), HasSubstr("magic"));
  EXPECT_THAT(error([](std::string& head, Packet&) { head[4] = 9; }), HasSubstr("format version 9"));
  EXPECT_THAT(error([](std::string& head, Packet&) { head[5] = 99; }), HasSubstr("kind 99"));
  EXPECT_THAT(error([](std::string& head, Packet&) { head[60] = 1; }), HasSubstr("seal"));
  EXPECT_THAT(error([](std::string& head, Packet&) { head.pop_back(); }), HasSubstr("a body of 2 bytes"));
  EXPECT_THAT(error([](std::string& head, Packet&) { head[43] = 1; }), HasSubstr("a body of"));
  EXPECT_THAT(error([](std::string&, Packet& packet) { packet.pop_back(); }), HasSubstr("0 payload frames"));
  EXPECT_THAT(error([](std::string&, Packet& packet) { packet[1].size = 2; }), HasSubstr("2 payload bytes"));
  EXPECT_THROW(decode({}), Corrupt);
}

TEST(Message, a_body_that_is_too_large_is_the_callers_mistake) {
  EXPECT_THROW(encode(sample(MessageKind::kInit, std::string((64 << 20) + 1, 'x'), {})), InvalidArgument);
}

// Whatever bytes arrive, decode() throws Corrupt or returns what encodes to the same bytes.
TEST(Message, mutated_packets_are_refused_or_mean_themselves) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::vector<std::string> payload(random() % 4, std::string(random() % 50, 'p'));
    const Packet good =
        encode(sample(static_cast<MessageKind>(random() % 6), std::string(random() % 100, 'b'), payload));
    std::vector<std::string> frames;
    for (const Frame& frame : good) frames.push_back(bytes_of(frame));
    for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      std::string& frame = frames[random() % frames.size()];
      switch (random() % 5) {
        case 0:
          if (!frame.empty()) frame[random() % frame.size()] = static_cast<char>(random());
          break;
        case 1:
          if (!frame.empty()) frame[random() % frame.size()] ^= static_cast<char>(1 << random() % 8);
          break;
        case 2: frame.resize(random() % (frame.size() + 10)); break;
        case 3: frames.push_back(frame); break;
        default:
          if (frames.size() > 1) frames.pop_back();
          break;
      }
    }
    Packet packet;
    for (const std::string& frame : frames) packet.push_back(Frame::copy_of(frame.data(), frame.size()));
    try {
      const Packet again = encode(decode(packet));
      ASSERT_EQ(again.size(), packet.size());
      for (std::size_t i = 0; i < packet.size(); ++i) ASSERT_EQ(bytes_of(again[i]), bytes_of(packet[i]));
    } catch (const Corrupt&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace paceline
