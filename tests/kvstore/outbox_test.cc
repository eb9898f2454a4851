// What is sent first, and how much is under way.
#include "send/outbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <thread>

#include "cluster_in_process.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// ---- the window ----

// A line that serves one request after the other, and answers `latency` later; time is made up.
struct Line {
  double latency, bytes_per_second;
  double now = 1, free = 0;
  FlowWindow window{};

  static FlowWindow::Time at(double seconds) {
    return FlowWindow::Time(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
  }

  // Sends so many messages, as many at a time as the window allows; the seconds until the last answer.
  double send(int messages, std::size_t bytes) {
    struct Sent {
      FlowWindow::Ticket ticket;
      double answered;
    };
    std::deque<Sent> under_way;
    const double start = now;
    for (int i = 0; i < messages; ++i) window.submitted(bytes);
    for (int left = messages; left > 0 || !under_way.empty();) {
      if (left > 0 && (under_way.empty() || (under_way.size() + 1) * bytes <= window.bytes())) {
        free = std::max(free, now + latency) + static_cast<double>(bytes) / bytes_per_second;
        under_way.push_back({window.sent(at(now)), free + latency});
        --left;
        continue;
      }
      now = std::max(now, under_way.front().answered);
      window.answered(under_way.front().ticket, bytes, at(now));
      under_way.pop_front();
    }
    window.idle();
    now += 0.1;
    return now - 0.1 - start;
  }
};

TEST(FlowWindow, KnowsTheLineAndKeepsItBusy) {
  for (const double speed : {12.5e6, 125e6, 1.25e9, 12.5e9}) {
    for (const double latency : {50e-6, 500e-6}) {
      Line line{latency, speed};
      line.send(1, 64);
      line.send(64, 1 << 20);
      EXPECT_NEAR(line.window.latency_seconds(), latency, 0.1 * latency);
      const double seconds = line.send(64, 1 << 20), all = 64.0 * (1 << 20);
      EXPECT_NEAR(line.window.bytes_per_second(), speed, 0.05 * speed) << speed << " " << latency;
      EXPECT_LT(seconds, 1.05 * all / speed + 4 * latency) << speed << " " << latency;
    }
  }
}

// Seconds that pushing, applying and answering take together in messages of that size: algorithms 3.3.
double pipeline_seconds(const Line& line, double all, double message) {
  return (all / message + 2) * (line.latency + message / line.bytes_per_second);
}

TEST(FlowWindow, MessagesAreWithinThreePercentOfTheBest) {
  constexpr double kAll = 64.0 * (1 << 20);
  for (const double speed : {12.5e6, 125e6, 1.25e9}) {
    for (const double latency : {100e-6, 1e-3}) {
      Line line{latency, speed};
      line.send(1, 64);
      line.send(64, 1 << 20);
      double best = pipeline_seconds(line, kAll, kAll);
      for (double message = 16 << 10; message < kAll; message *= 1.1)
        best = std::min(best, pipeline_seconds(line, kAll, message));
      const auto chosen = static_cast<double>(line.window.message_bytes());
      EXPECT_LT(pipeline_seconds(line, kAll, chosen), 1.03 * best) << speed << " " << latency << " " << chosen;
      // Three of them, or what the line carries in 20 ms, may be under way.
      EXPECT_NEAR(static_cast<double>(line.window.bytes()), std::clamp(0.02 * speed, 3 * chosen, 16.0 * (1 << 20)),
                  0.05 * 0.02 * speed);
    }
  }
}

TEST(FlowWindow, CountsAStepsBytesWithoutARest) {
  Line line{100e-6, 125e6};
  line.send(1, 64);
  line.send(64, 1 << 20);
  const std::size_t rested = line.window.message_bytes();
  for (int step = 0; step < 100; ++step) {
    line.window.submitted(64 << 20);
    line.window.step_over();
  }
  EXPECT_EQ(line.window.message_bytes(), rested);
}

TEST(FlowWindow, ForgetsAFasterPast) {
  Line line{100e-6, 1.25e9};
  line.send(1, 64);
  line.send(64, 1 << 20);
  line.bytes_per_second = 125e6;
  line.send(192, 1 << 20);
  EXPECT_NEAR(line.window.bytes_per_second(), 125e6, 0.05 * 125e6);
}

// ---- priority ----

// A server and a worker over tcp; what the worker sends goes through a line of 1 Gbit/s, in order.
constexpr double kLineSpeed = 125e6;

class OutboxOverTcp : public testing::Test {
 protected:
  OutboxOverTcp() {
    worker_config_.faults = str("throttle ", kLineSpeed, "B/s");
    server_ = std::make_unique<Node>(test::member(job_, Role::kServer, scheduler_.port(), 0),
                                     Node::Handlers{[this](const Request& request) {
                                                      std::size_t bytes = 0;
                                                      for (const Frame& frame : request.message().payload)
                                                        bytes += frame.size;
                                                      if (bytes == kUrgent) before_urgent_ = received_.load();
                                                      received_ += bytes;
                                                      const std::string& body = request.message().body;
                                                      const Lock lock(arrived_mutex_);
                                                      if (!body.empty()) arrived_.push_back(body);
                                                      Message answer;
                                                      answer.body = "taken";
                                                      request.reply(std::move(answer));
                                                    },
                                                    nullptr});
    server_thread_ = std::thread([this] { server_->join(); });
    worker_ =
        std::make_unique<Node>(test::member(worker_config_, Role::kWorker, scheduler_.port(), 0), Node::Handlers{});
    worker_->join();
    server_thread_.join();
    outbox_ = std::make_unique<Outbox>(*worker_, PeerId{Role::kServer, 0});
  }
  ~OutboxOverTcp() override {
    outbox_->close();
    worker_->leave();
    server_->leave();
    worker_.reset();
    server_.reset();
  }

  void submit(int priority, std::size_t bytes, std::function<void()> then, const std::string& body = "") {
    Message message;
    message.header.kind = MessageKind::kPushPull;
    message.body = body;
    if (bytes > 0) message.payload.push_back({backlog_, backlog_.get(), bytes});
    outbox_->submit(priority, bytes, std::move(message),
                    [then = std::move(then)](const std::optional<Message>& answer, const std::exception_ptr&) {
                      EXPECT_TRUE(answer.has_value());
                      then();
                    });
  }

  static constexpr std::size_t kLow = 1 << 20, kUrgent = 64 << 10;

  const ClusterConfig job_ = [] {
    ClusterConfig config = test::job_config("tcp", 1, 1);
    config.silence_deadline_seconds = 20;
    return config;
  }();
  ClusterConfig worker_config_ = job_;
  test::SchedulerThread scheduler_{job_};
  const std::shared_ptr<std::byte[]> backlog_{new std::byte[1 << 20]()};
  std::atomic<std::size_t> received_ = 0, before_urgent_ = 0;  // bytes
  Mutex arrived_mutex_;
  std::vector<std::string> arrived_ PACELINE_GUARDED_BY(arrived_mutex_);  // the bodies that say something, in order
  std::unique_ptr<Node> server_, worker_;
  std::thread server_thread_;
  std::unique_ptr<Outbox> outbox_;
};

// T3.2. Asserted is the time on the line's own clock, which no load on this machine lengthens: what was ahead of the
// urgent request there, and itself, at the line's speed.
TEST_F(OutboxOverTcp, AnUrgentRequestWaitsForTheWindowOnly) {
  constexpr int kCount = 64, kUrgentAfter = 4;
  const auto ask_and_wait = [this](int count, std::size_t bytes) {
    std::atomic<int> done = 0;
    for (int i = 0; i < count; ++i) submit(0, bytes, [&] { ++done; });
    while (done < count) std::this_thread::sleep_for(1ms);
  };
  for (int i = 0; i < 20; ++i) ask_and_wait(1, 64);
  ask_and_wait(8, kLow);

  const std::size_t received = received_;
  std::atomic<int> low = 0, done = 0;
  std::size_t window = 0;
  double milliseconds = 0;
  for (int i = 0; i < kCount; ++i) {
    submit(0, kLow, [&] {
      if (++low == kUrgentAfter) {
        window = outbox_->window();
        submit(1, kUrgent, [&, since = Clock::now()] {
          milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - since).count();
          ++done;
        });
        window = std::max(window, outbox_->window());  // it may have grown before the request was in the queue
      }
      ++done;
    });
  }
  while (done < kCount + 1) std::this_thread::sleep_for(1ms);
  const std::size_t ahead = before_urgent_ - received - kUrgentAfter * kLow;
  const auto on_the_line = [](std::size_t bytes) { return static_cast<double>(bytes + kUrgent) / kLineSpeed; };
  std::printf("the urgent 64 KB waited for %.1f MB, %.1f ms on the line and %.1f ms in all; window %.2f MB\n",
              static_cast<double>(ahead) / 1e6, 1e3 * on_the_line(ahead), milliseconds,
              static_cast<double>(window) / 1e6);
  EXPECT_LE(on_the_line(ahead), on_the_line(std::max(window, kLow)));
  EXPECT_EQ(received_, received + kCount * kLow + kUrgent);
}

TEST_F(OutboxOverTcp, EqualPrioritiesGoInTheOrderGiven) {
  constexpr int kPriorities = 3, kEach = 12;
  std::atomic<int> done = 0;
  std::vector<std::string> given;
  for (int i = 0; i < kEach; ++i) {
    for (int priority = 0; priority < kPriorities; ++priority) {
      given.push_back(str(priority, " ", 10 + i));
      submit(
          priority, kLow, [&] { ++done; }, given.back());
    }
  }
  while (done < kPriorities * kEach) std::this_thread::sleep_for(1ms);
  const Lock lock(arrived_mutex_);
  EXPECT_NE(arrived_, given);  // more than may be under way, so some have passed others
  const auto by_priority = [](const std::string& a, const std::string& b) { return a.front() < b.front(); };
  std::stable_sort(arrived_.begin(), arrived_.end(), by_priority);
  std::stable_sort(given.begin(), given.end(), by_priority);
  EXPECT_EQ(arrived_, given);
}

// Such as a pull that waits for other workers: were it held up by pushes, the line back would lie idle.
TEST_F(OutboxOverTcp, ARequestThatTakesNoRoomDoesNotWaitForOthers) {
  constexpr int kCount = 32;
  std::atomic<int> low = 0, done = 0, before = -1;
  for (int i = 0; i < kCount; ++i) {
    submit(1, kLow, [&] {
      if (++low == 4) {
        submit(0, 0, [&] {
          before = low.load();
          ++done;
        });
      }
      ++done;
    });
  }
  while (done < kCount + 1) std::this_thread::sleep_for(1ms);
  EXPECT_LT(before, kCount);  // the window is 16 of them at most
}

// One that cannot be sent at all, as where memory runs out, is answered, and those behind it are sent.
TEST_F(OutboxOverTcp, ARequestThatCannotBeSentTakesNobodysPlace) {
  for (int i = 0; i < 3; ++i) {
    Message message;
    message.header.kind = MessageKind::kPushPull;
    message.body.resize((std::size_t{64} << 20) + 1);
    std::exception_ptr refused;
    outbox_->submit(0, std::size_t{64} << 20, std::move(message),
                    [&](const std::optional<Message>& answer, std::exception_ptr error) {
                      EXPECT_FALSE(answer.has_value());
                      refused = std::move(error);
                    });
    ASSERT_TRUE(refused);
    EXPECT_THROW(std::rethrow_exception(refused), InvalidArgument);
  }
  std::atomic<int> done = 0;
  for (int i = 0; i < 4; ++i) submit(0, kUrgent, [&] { ++done; });
  while (done < 4) std::this_thread::sleep_for(1ms);
}

// T3.2, what the window is for: handed over at once, the low ones are all ahead of the urgent one, of whatever
// priority.
TEST_F(OutboxOverTcp, WithoutAWindowAnUrgentRequestWaitsForAll) {
  constexpr int kCount = 16;
  const auto start = Clock::now();
  std::atomic<int> low = 0, done = 0, before = -1;
  const auto ask = [&](std::size_t bytes, std::function<void()> then) {
    Message message;
    message.header.kind = MessageKind::kPushPull;
    message.payload.push_back({backlog_, backlog_.get(), bytes});
    worker_->ask({Role::kServer, 0}, std::move(message),
                 [&done, then = std::move(then)](const std::optional<Message>& answer, const std::exception_ptr&) {
                   EXPECT_TRUE(answer.has_value());
                   then();
                   ++done;
                 });
  };
  for (int i = 0; i < kCount; ++i) ask(kLow, [&] { ++low; });
  std::atomic<double> seconds = 0;
  ask(kUrgent, [&] {
    before = low.load();
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  });
  while (done < kCount + 1) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(before, kCount);
  EXPECT_GT(seconds, 0.1);  // no load makes the line faster
}

}  // namespace
}  // namespace paceline
