// When a request is sent again.
#include "asks.h"

#include <gtest/gtest.h>

#include <thread>

namespace paceline::test {
namespace {

constexpr PeerId kServer{Role::kServer, 0};

Packet packet_of(std::size_t bytes) {
  const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]());
  return {{memory, memory.get(), bytes}};
}

// What is sent when a pause is over.
Asks::Repeat next_repeat(Asks& asks) {
  for (;;) {
    std::vector<Asks::Slow> slow;
    const std::vector<Asks::Repeat> repeats = asks.due(slow);
    if (!repeats.empty()) return repeats.front();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(Asks, ALargeRequestIsSentOnceForAllProbesBeforeIt) {
  Asks asks(0.001);
  const std::uint64_t number = asks.next_number();
  asks.add(number, kServer, MessageKind::kPushPull, packet_of(100 << 10), [](auto, auto) {});
  EXPECT_FALSE(asks.repeat(number)) << "nobody has asked the peer";
  EXPECT_TRUE(next_repeat(asks).packet.empty());
  EXPECT_TRUE(next_repeat(asks).packet.empty());
  // The peer answers both probes.
  const std::optional<Asks::Repeat> whole = asks.repeat(number);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->packet.size(), 1u);
  EXPECT_FALSE(asks.repeat(number));
  // It was lost, too.
  EXPECT_TRUE(next_repeat(asks).packet.empty());
  EXPECT_TRUE(asks.repeat(number));
  EXPECT_TRUE(asks.take(number));
  EXPECT_FALSE(asks.repeat(number));
}

TEST(Asks, ACancelledRequestIsForgotten) {
  Asks asks(10);
  const std::uint64_t number = asks.next_number();
  asks.add(number, kServer, MessageKind::kPushPull, packet_of(10), [](auto, auto) {});
  EXPECT_TRUE(asks.cancel(number));
  EXPECT_FALSE(asks.cancel(number));
  EXPECT_FALSE(asks.take(number));
}

}  // namespace
}  // namespace paceline::test
