// Threads that wait for an engine do what is offered meanwhile, and notice tasks that others end.

#include <gtest/gtest.h>
#include <paceline/detail/waiting_work.h>
#include <paceline/engine.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace paceline {
namespace {

// Does nothing until it is told to look, like a transport that receives nothing. It refuses no thread: when two threads
// are inside at the same time, it notes that and releases all of them.
class Idle final : public detail::WaitingWork {
 public:
  bool work_until(const std::function<bool()>& done) override {
    if (++inside_ > 1) {
      crowded = true;
      look_again();
    }
    ++begun;
    begun.notify_all();
    for (int seen = looks_; !done() && !crowded; seen = looks_) looks_.wait(seen);
    --inside_;
    return done();
  }
  void look_again() override {
    ++looks_;
    looks_.notify_all();
  }
  void wait_until_begun(int times) const {
    for (int now = begun; now < times; now = begun) begun.wait(now);
  }

  std::atomic<int> begun = 0;
  std::atomic<bool> crowded = false;

 private:
  std::atomic<int> inside_ = 0;
  std::atomic<int> looks_ = 0;
};

TEST(OfferedWork, EndsWhenAnotherThreadEndsTheTask) {
  const auto idle = std::make_shared<Idle>();
  detail::offer_waiting_work(idle);
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  for (int i = 1; i <= 100; ++i) {
    engine->push({"waits"}, {}, {&variable, 1}, [&idle, i](TaskContext&) { idle->wait_until_begun(i); });
    engine->wait(variable);
    EXPECT_EQ(idle->begun, i);
  }
}

// The task ends when all threads are about to wait and one works. That one works until the task ends, so a second
// thread inside would meet it. A round proves nothing where the others come late; of many rounds they are late in few.
TEST(OfferedWork, OnlyOneOfManyThreadsDoesIt) {
  constexpr int kThreads = 4, kRounds = 100;
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  for (int round = 0; round < kRounds; ++round) {
    const auto idle = std::make_shared<Idle>();
    detail::offer_waiting_work(idle);
    std::latch arrived(kThreads);
    int at_it = 0;
    std::atomic<bool> ended = false;
    engine->push({"waits"}, {}, {&variable, 1}, [&](TaskContext&) {
      arrived.wait();
      idle->wait_until_begun(1);
      at_it = idle->begun;
      ended = true;
    });
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        arrived.count_down();
        engine->wait(variable);
        EXPECT_TRUE(ended) << "a thread did not wait";
      });
    }
    threads.clear();
    EXPECT_EQ(at_it, 1);
    EXPECT_FALSE(idle->crowded) << "in round " << round;
  }
}

TEST(OfferedWork, WhatIsGoneIsNotDone) {
  detail::offer_waiting_work(std::make_shared<Idle>());
  EXPECT_FALSE(detail::waiting_work());
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  engine->push({"nothing"}, {}, {&variable, 1}, [](TaskContext&) {});
  engine->wait(variable);
}

}  // namespace
}  // namespace paceline
