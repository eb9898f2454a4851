// A worker that pushes without pulling does not leave a server more and more rounds to keep.
#include <gtest/gtest.h>
#include <kvstore/row_support.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "partition_log.h"
#include "shard.h"

namespace paceline::test {
namespace {

constexpr int kSteps = 60, kMostOpenSteps = 4;
// Steps that end unanswered, those that are answered early, and the one that ends now.
constexpr std::int64_t kMostRounds = kMostOpenSteps + static_cast<int>(ServerShard::kFurthestAhead) + 1;

// Counts the rounds that were pushed to and are not closed.
class Counting final : public EntryObserver, public PartitionLog {
 public:
  EntryObserver* begin(const DensePartition&, std::span<const std::pair<SliceInfo, const void*>>) override {
    return this;
  }
  EntryObserver* begin(const RowPartition&) override { return this; }

  void on(const PushEntry& entry) override { pushed(entry.step); }
  void on(const RowPushEntry& entry) override { pushed(entry.step); }
  void on(const CloseEntry& entry) override { closed_ = static_cast<std::int64_t>(entry.round) + 1; }
  void on(const RowCloseEntry& entry) override { closed_ = static_cast<std::int64_t>(entry.round) + 1; }
  void on(const ReadEntry&) override {}
  void on(const SkipEntry&) override {}
  void on(const AgreeEntry&) override {}
  void on(const AnswerEntry&) override {}
  void on(const AbstainEntry&) override {}
  void on(const RulesEntry&) override {}
  void on(const RateEntry&) override {}
  void on(const WorkersEntry&) override {}
  void on(const LostEntry&) override {}
  void on(const LoadEntry&) override {}
  void on(const RowReadEntry&) override {}
  void on(const RowSkipEntry&) override {}
  void on(const RowLoadEntry&) override {}

  std::int64_t most() const { return most_; }
  std::int64_t closed() const { return closed_; }

 private:
  void pushed(std::uint64_t step) {
    most_ = std::max<std::int64_t>(most_, static_cast<std::int64_t>(step) + 1 - closed_);
  }

  std::atomic<std::int64_t> most_ = 0, closed_ = 0;
};

// The second worker begins when the first cannot go on, or has nothing left to do.
TEST(OpenRounds, AreFewThoughNobodyPulls) {
  for (const bool rows : {false, true}) {
    SCOPED_TRACE(rows);
    Counting count;
    ClusterInProcess cluster({.mode = "dist_sync", .servers = 1, .serial = false, .log = &count});
    if (cluster.has_processes()) GTEST_SKIP() << "the log is that of a server in this process";
    std::atomic<std::int64_t> ended = 0;
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const TableSpec table = table_of(1, 1, "zeros");
      const NDArray weight = NDArray::zeros(Shape{1}, DType::kFloat32, {}, engine);
      if (rows)
        store.init_table(table);
      else
        store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1});
      store.barrier();
      while (worker == 1 && ended < kMostRounds - 1) std::this_thread::yield();
      const NDArray gradient = NDArray::full(Shape{1}, -1, DType::kFloat32, {}, engine);
      for (int step = 0; step < kSteps; ++step) {
        if (rows)
          store.push_rows({{table.name, ids_of({0}, engine), gradient.view({1, 1})}});
        else
          store.push("w", gradient);
        store.step_end();
        if (worker == 0) ++ended;
      }
      if (!rows) {
        store.pull("w", weight);
        EXPECT_EQ(weight.item<float>(), kSteps);
      } else {
        EXPECT_EQ(pull(store, table, {0}, engine), std::vector<float>(1, kSteps));
      }
    });
    EXPECT_EQ(count.closed(), kSteps);
    EXPECT_LE(count.most(), kMostRounds);
  }
}

}  // namespace
}  // namespace paceline::test
