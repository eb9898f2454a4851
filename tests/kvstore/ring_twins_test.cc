// Twins of a ring (ring_peer.h) that say to be on two hosts, and share memory all the same.
#include <gtest/gtest.h>
#include <paceline/kvstore.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <mutex>
#include <vector>

#include "hand_made_worker.h"
#include "key_partition.h"
#include "parse_body.h"
#include "workers.pb.h"

namespace paceline::test {
namespace {

constexpr std::int64_t kElements = 600000;  // doubles: more messages than are in flight at a time
constexpr std::size_t kBytes = kElements * sizeof(double);

ClusterConfig on_host(ClusterConfig config, const char* host) {
  config.node_host = host;
  return config;
}

// Worker 1: answers each push at once, and keeps its gradients.
class KeepingTwin {
 public:
  explicit KeepingTwin(const ClusterConfig& config)
      : node_(config, {[this](const Request& request) {
                         if (request.message().header.kind == MessageKind::kRingPush) keep(request);
                         request.reply({});
                       },
                       nullptr}) {
    node_.join();
    wire::InitRequest init;
    init.set_call(1);
    init.set_mode("ring");
    write_key({"x", DType::kFloat64, Shape{kElements}, false}, init.add_keys());
    wire::InitReply reply;
    EXPECT_TRUE(reply.ParseFromString(ask(node_, MessageKind::kInit, init.SerializeAsString()).body));
    for (const KeyPartition& partition : parse_layout(reply).partitions) pieces_ += partition.slices.size();
    init.clear_keys();
    init.set_values(true);
    ask(node_, MessageKind::kInit, init.SerializeAsString());
    init.set_values(false);
    init.set_held(true);
    ask(node_, MessageKind::kInit, init.SerializeAsString());
  }
  ~KeepingTwin() { node_.leave(); }

  // Sets the optimizer, before worker 0 does. So worker 0 need not tell of its own.
  void set_optimizer(const Spec& optimizer) {
    wire::RingTell tell;
    tell.set_generation(1);
    tell.mutable_rules()->set_optimizer_call(1);
    tell.mutable_rules()->set_optimizer(optimizer.text());
    node_.ask_and_wait(kOther, message_of(MessageKind::kRingTell, tell));
  }
  // Sends a gradient of zeros.
  void push() {
    wire::RingPush push;
    push.set_generation(1);
    push.set_examples(1);
    push.set_workers(1);
    for (std::uint32_t piece = 0; piece < pieces_; ++piece) {
      push.add_pieces(piece);
      push.add_bytes(0);
    }
    node_.ask_and_wait(kOther, message_of(MessageKind::kRingPush, push, {Frame::of(std::string(kBytes, '\0'))}));
  }
  // What it has of the other's gradient, now.
  std::vector<double> kept() {
    const std::lock_guard lock(mutex_);
    std::vector<double> values;
    for (const Request& push : pushes_) {
      for (const Frame& frame : push.message().payload) {
        const std::size_t before = values.size();
        values.resize(before + frame.size / sizeof(double));
        std::memcpy(values.data() + before, frame.data, frame.size);
      }
    }
    return values;
  }

 private:
  static constexpr PeerId kOther{Role::kWorker, 0};

  void keep(const Request& push) {
    const std::lock_guard lock(mutex_);
    pushes_.push_back(push);
  }

  std::size_t pieces_ = 0;
  std::mutex mutex_;
  std::vector<Request> pushes_;
  Node node_;  // last, because its threads use the pushes
};

// Worker 0's first push opens the link to worker 1. They begin to share memory while most of its messages wait.
TEST(RingTwins, AGradientMayBeWrittenAlthoughMemoryIsSharedSinceItWasGiven) {
  const ClusterConfig job = job_config("shm", 0, 2);
  SchedulerThread scheduler(job);
  const Spec optimizer = optim::SGD{.lr = 1};
  std::promise<void> told, written, checked;
  std::thread writing([&] {
    const auto engine = make_threaded_engine();
    StoreOptions options;
    options.engine = engine.get();
    const auto store =
        KVStore::join(on_host(member(job, Role::kWorker, scheduler.port(), 0), "127.0.0.1"), "ring", options);
    const auto full = [&](double value) { return NDArray::full({kElements}, value, DType::kFloat64, {}, *engine); };
    const NDArray weight = full(0);
    NDArray gradient = full(1);
    store->init({{"x", weight}});
    told.get_future().wait();
    store->set_optimizer(optimizer);
    store->push_pull({{"x", gradient}}, {{"x", weight}}, 1);
    store->step_end();
    gradient.fill(1e6);
    gradient.wait();
    written.set_value();
    checked.get_future().wait();
    store->finish();
  });
  {
    KeepingTwin twin(on_host(member(job, Role::kWorker, scheduler.port(), 1), "127.0.0.2"));
    twin.set_optimizer(optimizer);
    told.set_value();
    twin.push();
    written.get_future().wait();
    const std::vector<double> kept = twin.kept();
    EXPECT_EQ(kept.size(), kElements);
    EXPECT_EQ(std::count(kept.begin(), kept.end(), 1), kElements);
    checked.set_value();
  }
  writing.join();
  EXPECT_EQ(scheduler.result(), "");
}

}  // namespace
}  // namespace paceline::test
