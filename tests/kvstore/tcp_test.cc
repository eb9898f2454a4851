// What is special about tcp; what every transport promises is in conformance/transports_test.cc.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <paceline/kvstore.h>
#include <paceline/transport.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "transport/address.h"
#include "transport/transport_setting.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

int option_of(int socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  return getsockopt(socket, level, name, &value, &size) == 0 ? value : -1;
}

// This process's TCP sockets that have a peer.
std::vector<int> connections() {
  std::vector<int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    if (option_of(number, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP &&
        getpeername(number, reinterpret_cast<sockaddr*>(&peer), &size) == 0)
      sockets.push_back(number);
  }
  return sockets;
}

TEST(Tcp, BothEndsNoticeThatThePathIsDead) {
  std::promise<void> answered;
  auto server = make_transport(Spec::parse("tcp")), client = make_transport(Spec::parse("tcp"));
  server->on_receive([&](LinkId from, const Packet& packet) { server->send(from, packet); });
  client->on_receive([&](LinkId, const Packet&) { answered.set_value(); });
  client->send(client->connect(server->bind("127.0.0.1:0")), {Frame::of("hello")});
  ASSERT_EQ(answered.get_future().wait_for(20s), std::future_status::ready);
  const std::vector<int> sockets = connections();
  EXPECT_GE(sockets.size(), 2u);
  for (const int socket : sockets) {
    EXPECT_EQ(option_of(socket, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option_of(socket, IPPROTO_TCP, TCP_KEEPIDLE), 30);
    EXPECT_EQ(option_of(socket, IPPROTO_TCP, TCP_USER_TIMEOUT), 30000);
  }
}

TEST(Tcp, WhatAHandlerSendsWhileTheTransportEndsArrives) {
  std::promise<void> asked, answered;
  auto server = make_transport(Spec::parse("tcp")), client = make_transport(Spec::parse("tcp"));
  server->on_receive([&, server = server.get()](LinkId from, const Packet& packet) {
    asked.set_value();
    std::this_thread::sleep_for(100ms);  // until the end has begun
    server->send(from, packet);
  });
  client->on_receive([&](LinkId, const Packet&) { answered.set_value(); });
  client->send(client->connect(server->bind("127.0.0.1:0")), {Frame::of("hello")});
  asked.get_future().wait();
  server.reset();
  EXPECT_EQ(answered.get_future().wait_for(60s), std::future_status::ready);
}

TEST(Address, AHostNameThatMeansLoopbackHereIsNotAnnouncedSo) {
  EXPECT_EQ(announced_host("127.0.0.1", "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(announced_host("127.0.0.1", "localhost"), "127.0.0.1");
  EXPECT_EQ(announced_host("::1", "::1"), "::1");
  EXPECT_EQ(announced_host("10.1.2.3", "hostA"), "10.1.2.3");
  const std::vector<Interface> interfaces = network_interfaces();
  const auto is_outer = [](const Interface& interface) { return interface.number.rfind("127.", 0) != 0; };
  const auto outer = std::find_if(interfaces.begin(), interfaces.end(), is_outer);
  if (outer == interfaces.end() || outer->number.find(':') != std::string::npos)
    GTEST_SKIP() << "this host has no network interface with an IPv4 address";
  EXPECT_EQ(announced_host("127.0.0.1", "hostA"), outer->number);
}

TEST(TransportSetting, IsWhatItsNameSaysWhateverTheOptions) {
  const auto tcp = TransportSetting::parse("tcp:io_threads=2"), shm = TransportSetting::parse("shm:host=a"),
             inproc = TransportSetting::parse("inproc");
  EXPECT_FALSE(tcp.lends_memory());
  EXPECT_TRUE(shm.lends_memory() && !shm.in_process());
  EXPECT_TRUE(inproc.lends_memory() && inproc.in_process());
  EXPECT_THROW(TransportSetting::parse("tcpp"), InvalidArgument);
  for (const std::string mode : {"dist_sync", "dist_async", "dist_local", "ring", "gossip"})
    EXPECT_THROW(KVStore::check(mode + ":transport=tcpp"), InvalidArgument) << mode;
}

}  // namespace
}  // namespace paceline
