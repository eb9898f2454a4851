// Memory that a job of small pushes holds: bounded by what it knows, not by what has happened.
#include <gtest/gtest.h>
#include <malloc.h>
#include <support/cluster_in_process.h>

namespace paceline::test {
namespace {

// Bytes in use, of heaps and of what was mapped for one block.
std::size_t in_use_now() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
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
      store.step_end(1);
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

}  // namespace
}  // namespace paceline::test
