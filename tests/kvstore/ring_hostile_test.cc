// What a worker of mode ring refuses of another.
#include <gtest/gtest.h>
#include <paceline/error.h>
#include <paceline/kvstore.h>

#include <future>
#include <limits>
#include <map>

#include "hand_made_worker.h"
#include "key_partition.h"
#include "workers.pb.h"

namespace paceline::test {
namespace {

constexpr std::int64_t kCount = 64;
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

const std::vector<KeyInfo>& keys() {
  static const std::vector<KeyInfo> keys{{"a", DType::kFloat64, Shape{32768}, false},  // of the other worker
                                         {"float32", DType::kFloat32, Shape{kCount}, false},
                                         {"float64", DType::kFloat64, Shape{kCount}, false},
                                         {"statistic", DType::kFloat32, Shape{kCount}, true}};
  return keys;
}

// Worker 1 of a job of two: says what the test lets it say.
class HandMadePeer {
 public:
  explicit HandMadePeer(const ClusterConfig& config)
      : node_(config, {[](const Request& request) { request.reply({}); }, nullptr}) {
    node_.join();
    wire::InitRequest init;
    init.set_call(1);
    init.set_mode("ring with compression=bf16,pull=bf16,min_bytes=1");
    for (const KeyInfo& key : keys()) write_key(key, init.add_keys());
    wire::InitReply reply;
    EXPECT_TRUE(reply.ParseFromString(test::ask(node_, MessageKind::kInit, init.SerializeAsString()).body));
    const Layout layout = parse_layout(reply);
    std::uint32_t pieces = 0;
    for (const KeyPartition& partition : layout.partitions)
      for (const SliceRange& slice : partition.slices)
        pieces_[layout.keys[static_cast<std::size_t>(slice.key)].name] = pieces++;
    init.clear_keys();
    init.set_values(true);
    test::ask(node_, MessageKind::kInit, init.SerializeAsString());
    init.set_values(false);
    init.set_held(true);
    test::ask(node_, MessageKind::kInit, init.SerializeAsString());
  }
  ~HandMadePeer() { node_.leave(); }

  std::uint32_t piece(const std::string& key) const { return pieces_.at(key); }
  // What worker 0 says to it where it does not take it.
  std::string error_of(MessageKind kind, const google::protobuf::MessageLite& body, std::size_t bytes = 0) {
    Message message;
    message.header.kind = kind;
    message.body = body.SerializeAsString();
    if (bytes > 0) message.payload = {Frame::of(std::string((bytes + 7) / 8 * 8, '\0'))};
    return error_of_call([&] { node_.ask_and_wait({Role::kWorker, 0}, message); });
  }

 private:
  Node node_;
  std::map<std::string, std::uint32_t> pieces_;
};

wire::RingPush push_of(std::uint32_t piece, std::uint64_t encoded = 0) {
  wire::RingPush push;
  push.set_generation(1);
  push.set_examples(1);
  push.set_workers(1);
  push.add_pieces(piece);
  push.add_bytes(encoded);
  return push;
}

wire::RingResult result_of(std::uint32_t piece, std::uint64_t encoded, bool weights = false) {
  wire::RingResult result;
  result.set_generation(1);
  result.set_examples(1);
  result.set_rate(1);
  result.add_pieces(piece);
  result.add_versions(7);  // of a later round: it is not applied
  result.add_weights(weights);
  result.add_bytes(encoded);
  return result;
}

void be_hostile(HandMadePeer& peer) {
  const auto refuses = [&](const char* why, MessageKind kind, const google::protobuf::MessageLite& body,
                           std::size_t bytes = 0) {
    const std::string error = peer.error_of(kind, body, bytes);
    EXPECT_NE(error.find(why), std::string::npos) << "'" << why << "' is not in '" << error << "'";
  };
  constexpr std::size_t kRaw = kCount * sizeof(float), kEncoded = kRaw / 2;
  for (const char* key : {"float64", "statistic"}) {
    SCOPED_TRACE(key);
    refuses("cannot come encoded", MessageKind::kRingPush, push_of(peer.piece(key), kEncoded), kEncoded);
    refuses("cannot come encoded", MessageKind::kRingResult, result_of(peer.piece(key), kEncoded), kEncoded);
  }
  const std::uint32_t piece = peer.piece("float32");
  wire::RingPush push = push_of(piece);
  push.set_examples(-1);
  refuses("-1 examples", MessageKind::kRingPush, push, kRaw);
  for (const std::uint32_t workers : {0U, 3U}) {
    push = push_of(piece);
    push.set_workers(workers);
    refuses("gradients of", MessageKind::kRingPush, push, kRaw);
  }
  for (const double rate : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    push = push_of(piece);
    push.set_rate(rate);
    refuses("a learning rate", MessageKind::kRingPush, push, kRaw);
  }
  push = push_of(piece);
  push.set_round(kNever);
  refuses("no job", MessageKind::kRingPush, push, kRaw);

  refuses("weights encoded", MessageKind::kRingResult, result_of(piece, kEncoded, true), kEncoded);
  wire::RingResult result = result_of(piece, kEncoded);
  result.set_examples(-1);
  refuses("-1 examples", MessageKind::kRingResult, result, kEncoded);
  result = result_of(piece, kEncoded);
  result.set_round(kNever);
  refuses("no job", MessageKind::kRingResult, result, kEncoded);

  for (const auto set : {&wire::RingTell::set_over, &wire::RingTell::set_passed, &wire::RingTell::set_want}) {
    wire::RingTell tell;
    tell.set_generation(1);
    (tell.*set)(kNever);
    refuses("no job", MessageKind::kRingTell, tell);
  }
  wire::RingAsk settle;
  settle.set_what(wire::RingAsk::SETTLE);
  settle.set_generation(1);
  settle.set_round(kNever);
  refuses("no job", MessageKind::kRingAsk, settle);
}

TEST(RingHostile, WhatDoesNotFitIsRefusedAndTheRoundGoesOn) {
  const ClusterConfig job = job_config("inproc", 0, 2);
  SchedulerThread scheduler(job);
  std::promise<void> applied, answered;
  std::thread honest([&] {
    StoreOptions options;
    const auto engine = make_threaded_engine();
    options.engine = engine.get();
    const auto store =
        KVStore::join(member(job, Role::kWorker, scheduler.port(), 0), "ring:compression=bf16,min_bytes=1", options);
    std::vector<InitValue> values;
    for (const KeyInfo& key : keys())
      values.push_back({key.name, NDArray::full(key.shape, 0, key.dtype, {}, *engine), key.average});
    store->init(values);
    store->set_optimizer(optim::SGD{.lr = 1});
    const NDArray weight = values[2].value;
    store->push_pull({{"float64", NDArray::full(weight.shape(), -4, weight.dtype(), {}, *engine)}},
                     {{"float64", weight}}, 1);
    store->step_end();
    EXPECT_EQ(weight.to_vector<double>(), std::vector<double>(kCount, 2));
    applied.set_value();
    answered.get_future().wait();  // the peer would be told sooner that this worker has left
    store->finish();
  });
  {
    HandMadePeer peer(member(job, Role::kWorker, scheduler.port(), 1));
    be_hostile(peer);
    EXPECT_EQ(peer.error_of(MessageKind::kRingPush, push_of(peer.piece("float64")), kCount * sizeof(double)), "");
    answered.set_value();
    applied.get_future().wait();
  }
  honest.join();
}

}  // namespace
}  // namespace paceline::test
