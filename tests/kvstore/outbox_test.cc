// What is sent first, and how much is under way.
#include "exchange/outbox.h"

#include <gtest/gtest.h>

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
  CreditWindow window{};

  static CreditWindow::Time at(double seconds) {
    return CreditWindow::Time(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
  }

  // Sends so many messages, as many at a time as the window allows; the seconds until the last answer.
  double send(int messages, std::size_t bytes) {
    struct Sent {
      CreditWindow::Ticket ticket;
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

TEST(CreditWindow, KnowsTheLineAndKeepsItBusy) {
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

TEST(CreditWindow, MessagesAreWithinThreePercentOfTheBest) {
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

TEST(CreditWindow, CountsAStepsBytesWithoutARest) {
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

TEST(CreditWindow, ForgetsAFasterPast) {
  Line line{100e-6, 1.25e9};
  line.send(1, 64);
  line.send(64, 1 << 20);
  line.bytes_per_second = 125e6;
  line.send(192, 1 << 20);
  EXPECT_NEAR(line.window.bytes_per_second(), 125e6, 0.05 * 125e6);
}

// ---- priority ----

// A server and a worker over tcp; what the worker sends goes through a line of 1 Gbit/s.
class OutboxOverTcp : public testing::Test {
 protected:
  OutboxOverTcp() {
    worker_config_.faults = Options::parse("bytes_per_second=125e6");
    server_ = std::make_unique<Node>(test::member(job_, Role::kServer, scheduler_.port(), 0),
                                     Node::Handlers{[this](const Request& request) {
                                                      std::size_t bytes = 0;
                                                      for (const Frame& frame : request.message().payload)
                                                        bytes += frame.size;
                                                      received_ += bytes;
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

  void submit(int priority, std::size_t bytes, std::function<void()> then) {
    Message message;
    message.header.kind = MessageKind::kPushPull;
    if (bytes > 0) message.payload.push_back({backlog_, backlog_.get(), bytes});
    outbox_->submit(priority, bytes, std::move(message),
                    [then = std::move(then)](std::optional<Message> answer, std::exception_ptr) {
                      EXPECT_TRUE(answer.has_value());
                      then();
                    });
  }

  const ClusterConfig job_ = [] {
    ClusterConfig config = test::job_config("tcp", 1, 1);
    config.silence_deadline_seconds = 20;
    return config;
  }();
  ClusterConfig worker_config_ = job_;
  test::SchedulerThread scheduler_{job_};
  const std::shared_ptr<std::byte[]> backlog_{new std::byte[1 << 20]()};
  std::atomic<std::size_t> received_ = 0;
  std::unique_ptr<Node> server_, worker_;
  std::thread server_thread_;
  std::unique_ptr<Outbox> outbox_;
};

TEST_F(OutboxOverTcp, AnUrgentRequestWaitsForTheWindowOnly) {
  constexpr std::size_t kLow = 1 << 20, kUrgent = 64 << 10;
  const auto run = [&](int count, int urgent_after) {
    // Handlers run one at a time: between the answer that submits the urgent request and the urgent answer, what was
    // under way is answered and nothing else.
    std::atomic<int> low = 0, done = 0;
    std::atomic<int> between = -1;
    std::atomic<std::size_t> window = 0;
    std::atomic<double> milliseconds = 0;
    for (int i = 0; i < count; ++i) {
      submit(0, kLow, [&] {
        if (++low == urgent_after) {
          window = outbox_->window();
          submit(1, kUrgent, [&, since = Clock::now(), before = low.load()] {
            between = low - before;
            milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - since).count();
            ++done;
          });
        }
        ++done;
      });
    }
    while (done < count + (urgent_after > 0)) std::this_thread::sleep_for(1ms);
    if (urgent_after == 0) return;
    std::printf("the urgent 64 KB waited for %d of %d MB: %.1f ms, window %.2f MB\n", between.load(),
                count - urgent_after, milliseconds.load(), static_cast<double>(window) / 1e6);
    EXPECT_LE(static_cast<std::size_t>(between) * kLow, std::max(window.load(), kLow));
    EXPECT_EQ(low, count);
  };
  for (int i = 0; i < 20; ++i) {
    std::atomic<bool> small = false;
    submit(0, 64, [&] { small = true; });
    while (!small) std::this_thread::sleep_for(1ms);
  }
  run(8, 0);
  run(64, 4);
  EXPECT_GE(received_, 72 * kLow + kUrgent + 20 * 64);
}

// Such as a pull that waits for other workers: were it held up by pushes, the line back would lie idle.
TEST_F(OutboxOverTcp, ARequestThatTakesNoRoomDoesNotWaitForOthers) {
  constexpr std::size_t kLow = 1 << 20;
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

// T3.2, what the window is for: handed over at once, the low ones are all ahead of the urgent one, of whatever priority.
TEST_F(OutboxOverTcp, WithoutAWindowAnUrgentRequestWaitsForAll) {
  constexpr std::size_t kLow = 1 << 20;
  constexpr int kCount = 16;
  std::atomic<int> low = 0, done = 0, before = -1;
  const auto ask = [&](std::size_t bytes, std::function<void()> then) {
    Message message;
    message.header.kind = MessageKind::kPushPull;
    message.payload.push_back({backlog_, backlog_.get(), bytes});
    worker_->ask({Role::kServer, 0}, std::move(message),
                 [&done, then = std::move(then)](std::optional<Message> answer, std::exception_ptr) {
                   EXPECT_TRUE(answer.has_value());
                   then();
                   ++done;
                 });
  };
  for (int i = 0; i < kCount; ++i) ask(kLow, [&] { ++low; });
  ask(64 << 10, [&] { before = low.load(); });
  while (done < kCount + 1) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(before, kCount);
  EXPECT_GT(kCount * static_cast<double>(kLow) / 125e6, 0.1);  // seconds on that line
}

}  // namespace
}  // namespace paceline
