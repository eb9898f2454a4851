// When a request is sent again.
#include "requests.h"

#include <gtest/gtest.h>

#include <thread>

namespace paceline::test {
namespace {

constexpr PeerId kServer{Role::kServer, 0};

Packet packet_of(std::size_t bytes) {
  const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]());
  return {{memory, memory.get(), bytes}};
}

// The number of the probe that is sent when a pause is over.
int next_probe(PendingRequests& asks) {
  for (;;) {
    std::vector<PendingRequests::Slow> slow;
    const std::vector<PendingRequests::Probe> probes = asks.due(slow);
    if (!probes.empty()) return probes.front().number;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(PendingRequests, ARequestIsSentAgainOnceForAllProbesBeforeIt) {
  PendingRequests asks(0.001);
  const std::uint64_t number = asks.next_number();
  asks.add(number, kServer, MessageKind::kPushPull, packet_of(100), [](const auto&, const auto&) {});
  EXPECT_FALSE(asks.send_again(number, 1)) << "nobody has asked the peer";
  const int first = next_probe(asks), second = next_probe(asks), third = next_probe(asks);
  // The peer answers them all, the last one when the next is under way already.
  const std::optional<PendingRequests::Again> again = asks.send_again(number, first);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->packet.size(), 1u);
  EXPECT_FALSE(asks.send_again(number, second));
  const int fourth = next_probe(asks);
  EXPECT_FALSE(asks.send_again(number, third));
  // It was lost, too.
  EXPECT_TRUE(asks.send_again(number, fourth));
  EXPECT_FALSE(asks.send_again(number, fourth + 1)) << "no such probe was sent";
  EXPECT_TRUE(asks.take(number));
  EXPECT_FALSE(asks.send_again(number, fourth));
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
