// Mode ring around a barrier, with a scheduler that lets the test say which worker hears first that it is passed.
#include <gtest/gtest.h>
#include <kvstore/cluster_in_process.h>
#include <message.pb.h>
#include <paceline/backend.h>
#include <paceline/optimizer.h>

#include <array>
#include <future>
#include <map>
#include <thread>

#include "allreduce/ring.h"
#include "store_service.h"

namespace paceline::test {
namespace {

constexpr std::size_t kWorkers = 2;

// Answers a meeting once both workers have come; worker 1's answer to the meeting `held` waits for release().
class Meetings final : public SchedulerService {
 public:
  explicit Meetings(std::uint64_t held) : held_(held) {}

  bool on_request(const Request& request) override {
    if (request.message().header.kind == MessageKind::kGetFacts) {  // there are none
      request.reply({});
      return true;
    }
    if (request.message().header.kind != MessageKind::kBarrier) return false;
    proto::Barrier body;
    body.ParseFromString(request.message().body);
    if (body.number() == 0) {  // where are the others?
      answer(request);
      return true;
    }
    clock_ = std::max(clock_, body.clock());
    auto& here = here_[body.number()];
    here.emplace(request.from().rank, request);
    if (here.size() < kWorkers) return true;
    answer(here.at(0));
    if (body.number() == held_)
      waiting_.set_value(here.at(1));
    else
      answer(here.at(1));
    return true;
  }

  // Waits until the answer is held.
  void release() { answer(waiting_.get_future().get()); }

 private:
  void answer(const Request& request) const {
    proto::Barrier body;
    body.ParseFromString(request.message().body);
    body.set_clock(clock_);
    Message message;
    message.body = body.SerializeAsString();
    request.reply(std::move(message));
  }

  const std::uint64_t held_;
  std::uint64_t clock_ = 0;
  std::map<std::uint64_t, std::map<int, Request>> here_;
  std::promise<Request> waiting_;
};

// Two workers over inproc, whose inboxes keep the order in which all peers sent: whatever one worker sent before the
// scheduler answers the other is handled before that answer.
class Ring {
 public:
  explicit Ring(std::uint64_t held) : meetings_(held) {
    std::array<std::thread, kWorkers> threads;
    for (std::size_t w = 0; w < kWorkers; ++w) {
      engines_[w] = make_threaded_engine({.io_threads = 1});
      threads[w] = std::thread([this, w] {
        StoreOptions options;
        options.engine = engines_[w].get();
        workers_[w] =
            make_ring_backend(member(config_, Role::kWorker, 0, static_cast<int>(w)), Spec::parse("ring"), options);
        // Worker 1 is the owner of the first 256 KB: of the whole first key and some of the second.
        for (std::size_t k = 0; k < kElements.size(); ++k) weights_[w].push_back({names_[k], full(w, k, 0)});
        workers_[w]->init({{names_[0], weights_[w][0].out}, {names_[1], weights_[w][1].out}});
        workers_[w]->set_optimizer(optim::SGD{.lr = 1});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  ~Ring() {
    std::thread other([this] { workers_[1]->finish(); });
    workers_[0]->finish();
    other.join();
    for (auto& worker : workers_) worker.reset();
  }

  Backend& worker(std::size_t w) { return *workers_[w]; }
  Meetings& meetings() { return meetings_; }

  // Exchanges the keys below `keys`; returns when the messages are out.
  void begin_step(std::size_t w, double gradient, std::size_t keys = kElements.size()) {
    std::vector<PushItem> pushes;
    for (std::size_t k = 0; k < keys; ++k) pushes.push_back({names_[k], full(w, k, gradient)});
    for (const PushItem& item : pushes) item.gradient.wait();
    workers_[w]->push_pull(pushes, {weights_[w].begin(), weights_[w].begin() + static_cast<int>(keys)}, 1, 0);
    workers_[w]->step_end();
    // The engine's one thread for such tasks runs the exchange's before this, and the exchange's thread that before
    // the report.
    const Variable mark = engines_[w]->new_variable();
    engines_[w]->push({"mark", {}, Lane::kCommunication}, {}, std::array{mark}, [](TaskContext&) {});
    engines_[w]->wait(mark);
    workers_[w]->report();
  }
  // The first and the last element.
  std::array<double, 2> weights(std::size_t w, std::size_t key) {
    const std::vector<double> elements = weights_[w][key].out.to_vector<double>();
    return {elements.front(), elements.back()};
  }

 private:
  static constexpr std::array<std::int64_t, 2> kElements{30000, 13000};

  NDArray full(std::size_t w, std::size_t key, double value) {
    return NDArray::full(Shape{kElements[key]}, value, DType::kFloat64, {}, *engines_[w]);
  }

  static ClusterConfig scheduler_of(ClusterConfig config) {
    config.role = Role::kScheduler;
    return config;
  }

  const std::array<std::string, 2> names_{"a", "b"};
  const ClusterConfig config_ = job_config("inproc", 0, kWorkers);
  Meetings meetings_;
  const std::unique_ptr<SchedulerService> store_ = make_store_service(0, 10);
  Node scheduler_{scheduler_of(config_),
                  {[this](const Request& request) { meetings_.on_request(request) || store_->on_request(request); },
                   [this](const Roster& roster) { store_->on_roster(roster); }}};
  std::array<std::unique_ptr<Engine>, kWorkers> engines_;
  std::array<std::vector<PullItem>, kWorkers> weights_;
  std::array<std::unique_ptr<Backend>, kWorkers> workers_;
};

using Weights = std::array<double, 2>;

TEST(RingBarrier, WhoeverLeavesFirstWaitsForTheOthersGradients) {
  Ring ring(2);  // a barrier is two meetings
  std::thread other([&] { ring.worker(1).barrier(); });
  ring.worker(0).barrier();
  ring.begin_step(0, -1);  // worker 1, still in the barrier, gets a gradient and is asked about a round
  ring.meetings().release();
  other.join();
  ring.begin_step(1, -3);
  for (const std::size_t worker : {0, 1})
    for (const std::size_t key : {0, 1}) EXPECT_EQ(ring.weights(worker, key), (Weights{2, 2}));
}

TEST(RingBarrier, WhoeverComesFirstHoldsNoRoundBackThatBeganBefore) {
  Ring ring(0);
  ring.begin_step(0, -1, 1);
  // The scheduler's answer comes after worker 0's messages: worker 1 has them when it comes to the barrier.
  ring.worker(1).facts("");
  std::thread other([&] { ring.worker(1).barrier(); });
  EXPECT_EQ(ring.weights(0, 0), (Weights{1, 1}));
  ring.worker(0).barrier();
  other.join();
  // Both go on from the same step.
  ring.begin_step(0, -1);
  ring.begin_step(1, -3);
  for (const std::size_t worker : {0, 1}) {
    EXPECT_EQ(ring.weights(worker, 0), (Weights{3, 3}));
    EXPECT_EQ(ring.weights(worker, 1), (Weights{2, 2}));
  }
}

}  // namespace
}  // namespace paceline::test
