// Memory that a job of small pushes holds: bounded by what it knows, not by what has happened.
#include <gtest/gtest.h>
#include <malloc.h>
#include <support/cluster_in_process.h>

#include <chrono>
#include <thread>

#include "hand_made_worker.h"
#include "key_partition.h"
#include "round_number.h"
#include "weights.h"

namespace paceline::test {
namespace {

// Bytes in use, of heaps and of what was mapped for one block.
std::size_t in_use_now() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(Memory, BlocksOfWholeLinesOfASlabAreAlignedToLines) {
  for (const std::size_t expected : {0, 4112, 100000}) {
    Slab slab;
    slab.expect(expected);
    for (int i = 0; i < 200; ++i) {
      const bool line = i % 3 != 0;
      const auto place = reinterpret_cast<std::uintptr_t>(slab.allocate(line ? 64 : 16));
      EXPECT_EQ(place % (line ? 64 : 16), 0u) << i << ", expected " << expected;
    }
  }
}

TEST(Memory, PushesLeaveNothingBehind) {
  if (in_use_now() == 0) GTEST_SKIP() << "this allocator does not count what is in use";
  constexpr int kWorkers = 2, kKeys = 50, kAtOnce = 1000, kPushes = 100000;  // of each worker
  // delay_compensated remembers what each worker pulled.
  ClusterInProcess cluster({.mode = "dist_async:staleness=delay_compensated", .workers = kWorkers, .serial = false});
  std::vector<std::size_t> in_use;
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    std::vector<InitValue> keys;
    for (int k = 0; k < kKeys; ++k)
      keys.push_back({"key" + std::to_string(k), NDArray::zeros(Shape{16}, DType::kFloat32, {}, engine)});
    store.init(keys);
    store.set_optimizer(optim::SGD{.lr = 0.01, .momentum = 0.9});
    const NDArray gradient = NDArray::full(Shape{16}, 1e-3, DType::kFloat32, {}, engine);
    for (int pushed = 0; pushed < kPushes; pushed += kAtOnce) {
      for (int i = 0; i < kAtOnce; ++i) {
        const InitValue& key = keys[static_cast<std::size_t>(i % kKeys)];
        store.push_pull({{key.key, gradient}}, {{key.key, key.value}});
      }
      for (const InitValue& key : keys) key.value.wait();
      store.step_end();
      if (pushed != kPushes / 5 && pushed != kPushes - kAtOnce) continue;
      store.barrier();
      if (worker == 0) in_use.push_back(in_use_now());
      store.barrier();
    }
  });
  ASSERT_EQ(in_use.size(), 2u);
  // Eight bytes kept of each push would be 1.3 MB.
  EXPECT_LT(in_use[1], in_use[0] + (std::size_t{1} << 20));
}

// Weights, what the optimizer keeps and what the policy is announced to remember make up a server's memory, also where
// keys are small.
struct Held {
  const char* mode;
  const char* optimizer;
  const char* staleness;
  int copies;  // of the weights: these, optimizer's and policy's state, what the worker pulled
};

wire::PushPullRequest push_of(int partition, int slices, std::uint64_t sequence, std::uint64_t round) {
  wire::PushPullRequest push;
  push.set_examples(1);
  push.set_round(round);
  wire::Part* const part = push.add_parts();
  part->set_partition(static_cast<std::uint32_t>(partition));
  part->set_sequence(sequence);
  part->set_need(round + 1);
  for (int k = 0; k < slices; ++k) {
    part->add_push(static_cast<std::uint32_t>(k));
    part->add_base(round);
    part->add_pull(static_cast<std::uint32_t>(k));
  }
  return push;
}

class SmallKeys : public testing::TestWithParam<Held> {};

TEST_P(SmallKeys, HaveATenthBesideThemAtMost) {
  if (in_use_now() == 0) GTEST_SKIP() << "this allocator does not count what is in use";
  constexpr int kFirst = 20, kPartitions = 80;  // from the first on a server keeps messages' memory, too
  constexpr int kKeys = 250, kElements = 256;   // of a partition; of a key
  constexpr std::size_t kBytes = kElements * sizeof(float), kWeights = kPartitions * kKeys * kBytes;
  HandMadeWorker worker;
  wire::SetRules rules;
  rules.set_call(1);
  rules.set_optimizer(GetParam().optimizer);
  rules.set_staleness(GetParam().staleness);
  worker.ask(MessageKind::kSetRules, rules);
  const std::vector<Frame> payload{HandMadeWorker::frame(std::vector<std::byte>(kKeys * kBytes))};
  const auto init = [&](int id) {
    wire::InitValuesRequest values;
    values.set_mode(GetParam().mode);
    values.mutable_partition()->set_id(static_cast<std::uint32_t>(id));
    for (int k = 0; k < kKeys; ++k) {
      write_key({"key" + std::to_string(id * kKeys + k), DType::kFloat32, Shape{kElements}, false}, values.add_keys());
      wire::SliceRange* const slice = values.mutable_partition()->add_slices();
      slice->set_key(static_cast<std::uint32_t>(k));
      slice->set_end(kElements);
    }
    worker.ask(MessageKind::kInitValues, values, payload);
  };
  const auto push_and_pull = [&](int id) { worker.ask(MessageKind::kPushPull, push_of(id, kKeys, 1, 0), payload); };
  std::size_t before = 0;
  for (int id = 0; id < kFirst + kPartitions; ++id) {
    if (id == kFirst) before = in_use_now();
    init(id);
    push_and_pull(id);
  }
  const double announced = static_cast<double>(kWeights) * GetParam().copies;
  // Threads of ZeroMQ may let the last message go a little later than its answer came.
  const auto share = [&] { return (static_cast<double>(in_use_now()) - static_cast<double>(before)) / announced; };
  for (int i = 0; i < 2000 && share() > 1.1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_LE(share(), 1.1);
}

INSTANTIATE_TEST_SUITE_P(Memory, SmallKeys,
                         testing::Values(Held{"dist_async", "sgd:lr=0.1", "none", 1},
                                         Held{"dist_async", "adam:lr=0.1", "none", 3},
                                         Held{"dist_async", "sgd:lr=0.1", "gap_aware", 3},
                                         Held{"dist_async:bound=1", "sgd:lr=0.1", "none", 1},
                                         Held{"dist_sync", "sgd:lr=0.1", "none", 1},
                                         Held{"dist_sync:backup=1", "sgd:lr=0.1", "none", 1},
                                         Held{"dist_local:steps=1", "sgd:lr=0.1", "none", 1}));

// What is kept of a slice without an open round is enough to tell late and repeated pushes, and to answer pulls.
TEST(RoundsAtRest, KnowWhatWasPushed) {
  constexpr std::uint64_t kFirst = (std::uint64_t{1} << 32) - 2;  // of the rounds; only 32 bits are kept
  HandMadeWorker worker;
  wire::SetRules rules;
  rules.set_call(1);
  rules.set_optimizer("sgd:lr=1");
  rules.set_staleness("none");
  worker.ask(MessageKind::kSetRules, rules);
  wire::InitValuesRequest values;
  values.set_mode("dist_sync");
  write_key({"w", DType::kFloat32, Shape{1}, false}, values.add_keys());
  values.mutable_partition()->add_slices()->set_end(1);
  const std::vector<Frame> zero{HandMadeWorker::frame(std::vector<std::byte>(4))};
  worker.ask(MessageKind::kInitValues, values, zero);
  wire::StepEnd past;
  past.set_clock(kFirst);
  worker.ask(MessageKind::kStepEnd, past);
  std::uint64_t sequence = 0;
  const auto push = [&](std::uint64_t round) {
    wire::PushPullReply reply;
    const Message answer = worker.ask(MessageKind::kPushPull, push_of(0, 1, ++sequence, round), zero);
    EXPECT_TRUE(reply.ParseFromString(answer.body));
    return std::pair(reply.versions(0), reply.refused());
  };
  EXPECT_EQ(push(kFirst - 1), std::pair(0ul, 1ul));  // every worker is past that round
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(push(kFirst + i), std::pair(i + 1, 0ul));
    EXPECT_THROW(push(kFirst + i), Error);
    EXPECT_THROW(push(kFirst + i - 1), Error);
  }
}

TEST(RoundsAtRest, AreToldFromThirtyTwoBits) {
  constexpr std::uint64_t kTurn = std::uint64_t{1} << 32;
  for (const std::uint64_t round : {kTurn - 1, kTurn, kTurn + 5, 7 * kTurn + kTurn / 2})
    for (const std::uint64_t reference : {round, round + 1, round - 1, round + kTurn / 4, round - kTurn / 4})
      EXPECT_EQ(round_near(reference, static_cast<std::uint32_t>(round), 9), round);
  EXPECT_EQ(round_near(0, 0, 9), 0u);
  EXPECT_EQ(round_near(0, 3, 9), 3u);
  EXPECT_EQ(round_near(3, 0, 9), 0u);
  for (const std::uint64_t rested : {kTurn / 4 + 1, kTurn / 2, kTurn / 2 + 5, kTurn - kTurn / 4 - 1})
    EXPECT_EQ(round_near(kTurn + rested, 0, 9), 9u);
}

// An answer that nobody waits for leaves nothing behind.
TEST(RoundsAtRest, StayAtRestWhereAnAnswerIsRefused) {
  if (in_use_now() == 0) GTEST_SKIP() << "this allocator does not count what is in use";
  constexpr int kKeys = 8000;
  HandMadeWorker worker;
  wire::InitValuesRequest values;
  values.set_mode("dist_sync");
  for (int k = 0; k < kKeys; ++k) {
    write_key({"key" + std::to_string(k), DType::kFloat32, Shape{1}, false}, values.add_keys());
    wire::SliceRange* const slice = values.mutable_partition()->add_slices();
    slice->set_key(static_cast<std::uint32_t>(k));
    slice->set_end(1);
  }
  worker.ask(MessageKind::kInitValues, values, {HandMadeWorker::frame(std::vector<std::byte>(8 * kKeys))});
  wire::AgreeRequest answer;
  answer.set_bytes(8);
  const auto refused = [&](int begin, int end) {
    for (int k = begin; k < end; ++k) {
      answer.set_slice(static_cast<std::uint32_t>(k));
      EXPECT_THROW(worker.ask(MessageKind::kAgree, answer, {HandMadeWorker::frame(std::vector<std::byte>(8))}), Error);
    }
  };
  refused(0, kKeys / 2);
  const std::size_t before = in_use_now();
  refused(kKeys / 2, kKeys);
  EXPECT_LT(in_use_now(), before + kKeys / 2 * 100);  // a slice with rounds has more than that
}

}  // namespace
}  // namespace paceline::test
