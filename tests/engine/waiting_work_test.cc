// Threads that wait for an engine do what is offered meanwhile, and notice tasks that others end.

#include <gtest/gtest.h>
#include <paceline/detail/waiting_work.h>
#include <paceline/engine.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

namespace paceline {
namespace {

// Does nothing until it is told to look, as a transport to which nothing comes.
class Idle final : public detail::WaitingWork {
 public:
  bool work_until(const std::function<bool()>& done) override {
    if (busy_.exchange(true)) return false;
    ++begun;
    for (int seen = looks_; !done(); seen = looks_) {
      begun.notify_all();
      looks_.wait(seen);
    }
    busy_ = false;
    return true;
  }
  void look_again() override {
    ++looks_;
    looks_.notify_all();
  }
  void wait_until_begun(int times) const {
    for (int now = begun; now < times; now = begun) begun.wait(now);
  }

  std::atomic<int> begun = 0;

 private:
  std::atomic<bool> busy_ = false;
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

TEST(OfferedWork, OnlyOneOfManyThreadsDoesIt) {
  const auto idle = std::make_shared<Idle>();
  detail::offer_waiting_work(idle);
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  std::promise<void> go;
  engine->push({"waits"}, {}, {&variable, 1}, [&](TaskContext&) { go.get_future().wait(); });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { engine->wait(variable); });
  idle->wait_until_begun(1);
  go.set_value();
  for (std::thread& thread : threads) thread.join();
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
