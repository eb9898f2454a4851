// When a request is sent again.
#include "pending_requests.h"

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
PendingRequests::Repeat next_repeat(PendingRequests& asks) {
  for (;;) {
    std::vector<PendingRequests::Slow> slow;
    const std::vector<PendingRequests::Repeat> repeats = asks.due(slow);
    if (!repeats.empty()) return repeats.front();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(PendingRequests, ALargeRequestIsSentOnceForAllProbesBeforeIt) {
  PendingRequests asks(0.001);
  const std::uint64_t number = asks.next_number();
  asks.add(number, kServer, MessageKind::kPushPull, packet_of(100 << 10), [](const auto&, const auto&) {});
  EXPECT_FALSE(asks.repeat(number, 1)) << "nobody has asked the peer";
  const auto probe = [&] {
    const PendingRequests::Repeat repeat = next_repeat(asks);
    EXPECT_TRUE(repeat.packet.empty());
    return repeat.probe;
  };
  const int first = probe(), second = probe(), third = probe();
  // The peer answers them all, the last one when the next is under way already.
  const std::optional<PendingRequests::Repeat> whole = asks.repeat(number, first);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->packet.size(), 1u);
  EXPECT_FALSE(asks.repeat(number, second));
  const int fourth = probe();
  EXPECT_FALSE(asks.repeat(number, third));
  // It was lost, too.
  EXPECT_TRUE(asks.repeat(number, fourth));
  EXPECT_FALSE(asks.repeat(number, fourth + 1)) << "no such probe was sent";
  EXPECT_TRUE(asks.take(number));
  EXPECT_FALSE(asks.repeat(number, fourth));
}

TEST(PendingRequests, ACancelledRequestIsForgotten) {
  PendingRequests asks(10);
  const std::uint64_t number = asks.next_number();
  asks.add(number, kServer, MessageKind::kPushPull, packet_of(10), [](const auto&, const auto&) {});
  EXPECT_TRUE(asks.cancel(number));
  EXPECT_FALSE(asks.cancel(number));
  EXPECT_FALSE(asks.take(number));
}

}  // namespace
}  // namespace paceline::test
