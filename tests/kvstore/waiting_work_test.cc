// A thread that waits for an engine receives in the place of the transport's own thread.

#include <gtest/gtest.h>
#include <paceline/detail/waiting_work.h>
#include <paceline/transport.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace paceline {
namespace {

// What a server sends on demand, and on which of the client's threads it arrives.
struct Received {
  std::mutex mutex;
  std::vector<int> numbers;
  std::vector<std::thread::id> threads;
  std::atomic<int> count = 0;
  // Last, because their handlers use the members above.
  std::unique_ptr<Transport> server = make_transport(Spec::parse("tcp")), client = make_transport(Spec::parse("tcp"));
  std::shared_ptr<detail::WaitingWork> work = client->waiting_work();
  LinkId link = 0;

  Received() {
    server->on_receive([this](LinkId from, const Packet& packet) { server->send(from, packet); });
    client->on_receive([this](LinkId, const Packet& packet) {
      const std::lock_guard lock(mutex);
      numbers.push_back(std::stoi(std::string(reinterpret_cast<const char*>(packet[0].data), packet[0].size)));
      threads.push_back(std::this_thread::get_id());
      count = static_cast<int>(numbers.size());
      count.notify_all();
    });
    link = client->connect(server->bind("127.0.0.1:0"));
  }
  void ask(int number) { client->send(link, {Frame::of(std::to_string(number))}); }
  void wait_for(int wanted) const {
    for (int now = count; now < wanted; now = count) count.wait(now);
  }
  void expect_in_order() {
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<int>(i));
  }
};

TEST(WaitingWork, WhoWaitsReceivesAndTheTransportGoesOnAfterwards) {
  Received received;
  ASSERT_TRUE(received.work);
  constexpr int kTrips = 200;
  int trip = 0;
  for (int turn = 0; turn < 3; ++turn) {
    received.ask(trip);
    // It asks while it waits: between two waits the transport's own thread may receive.
    ASSERT_TRUE(received.work->work_until([&, last = (turn + 1) * kTrips] {
      if (trip == last) return true;
      if (received.count <= trip) return false;
      ++trip;
      if (trip < last) received.ask(trip);
      return trip == last;
    }));
    received.ask(trip);
    received.wait_for(++trip);  // nobody waits for an engine now
  }
  received.expect_in_order();
  const std::lock_guard lock(received.mutex);
  const auto own = std::count(received.threads.begin(), received.threads.end(), std::this_thread::get_id());
  EXPECT_GE(own, 3 * kTrips / 2);
}

TEST(WaitingWork, OthersSendMeanwhileAndNothingIsOvertaken) {
  Received received;
  constexpr int kPackets = 2000;
  std::atomic<bool> over = false;
  std::thread waits([&] {
    while (!over)
      if (!received.work->work_until([&, until = received.count + 3] { return over || received.count >= until; }))
        break;
  });
  for (int i = 0; i < kPackets; ++i) received.ask(i);
  received.wait_for(kPackets);
  over = true;
  received.work->look_again();
  waits.join();
  received.expect_in_order();
}

TEST(WaitingWork, OneThreadAtATimeUntilItIsToldToLook) {
  Received received;
  std::atomic<bool> done = false;
  std::promise<void> inside;
  std::thread waits([&] {
    bool first = true;
    EXPECT_TRUE(received.work->work_until([&] {
      if (std::exchange(first, false)) inside.set_value();
      return done.load();
    }));
  });
  inside.get_future().wait();
  EXPECT_FALSE(received.work->work_until([] { return true; }));
  done = true;
  received.work->look_again();
  waits.join();
}

TEST(WaitingWork, EndsWithTheTransport) {
  Received received;
  std::promise<void> inside;
  std::thread waits([&] {
    bool first = true;
    EXPECT_FALSE(received.work->work_until([&] {
      if (std::exchange(first, false)) inside.set_value();
      return false;
    }));
  });
  inside.get_future().wait();
  received.client.reset();
  waits.join();
  EXPECT_FALSE(received.work->work_until([] { return true; }));
  received.work->look_again();
}

}  // namespace
}  // namespace paceline
