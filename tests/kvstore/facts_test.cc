// Facts, values that are gathered at barriers, and notes of committed data: over every kind of backend, under loss and
// repetition of messages, and where workers are lost and return.
#include <gmock/gmock.h>
#include <support/cluster_in_process.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace paceline::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kModes[] = {
    "dist_sync", "dist_async:bound=2", "dist_local", "dist_local:averaging=elastic", "ring", "gossip"};

int servers_of(const std::string& mode) { return mode == "ring" || mode == "gossip" ? 0 : 1; }

NDArray full(double value, Engine& engine) { return NDArray::full(Shape{4}, value, DType::kFloat64, {}, engine); }

template <class Reached>
void wait_for(const Reached& reached) {
  while (!reached()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(Facts, AreSharedByName) {
  for (const std::string mode : kModes) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 3, .servers = servers_of(mode), .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      const std::string mine = "rank/" + std::to_string(worker);
      store.put_fact(mine, "first");
      store.put_fact(mine, std::string("a\0b", 3) + std::to_string(worker));
      store.put_fact("all", "the same");
      store.init({{"w", full(0, cluster.engine(worker))}});
      const Facts ranks = store.facts("rank/");
      ASSERT_EQ(ranks.size(), 3u);
      for (int rank = 0; rank < 3; ++rank)
        EXPECT_EQ(ranks.at("rank/" + std::to_string(rank)), std::string("a\0b", 3) + std::to_string(rank));
      EXPECT_EQ(store.facts("all"), (Facts{{"all", "the same"}}));
      EXPECT_EQ(store.facts("").size(), 4u);
      EXPECT_TRUE(store.facts("b").empty());
    });
  }
}

TEST(Facts, OfOneProcessAreItsOwn) {
  const auto store = KVStore::create("local");
  store->put_fact("b", "1");
  store->put_fact("b", "2");
  store->put_fact("ba", "3");
  store->put_fact("c", "4");
  EXPECT_EQ(store->facts("b"), (Facts{{"b", "2"}, {"ba", "3"}}));
  EXPECT_EQ(store->all_gather("x", "y"), (GatheredValues{{0, "y"}}));
  EXPECT_THROW(store->all_gather("", "y"), InvalidArgument);
}

TEST(Facts, TakeNoMoreThanTheSchedulerHasPlaceFor) {
  ClusterInProcess cluster({.workers = 1, .servers = 1});
  KVStore& store = cluster.worker(0);
  const auto put = [&](const std::string& name, std::size_t bytes) {
    return [&store, name, bytes] { store.put_fact(name, std::string(bytes, 'x')); };
  };
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_THAT(put("", 1), ThrowsMessage<InvalidArgument>(HasSubstr("0 bytes")));
  EXPECT_THAT(put("large", kMiB + 1),
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("'large'"), HasSubstr("1048576"))));
  for (int i = 0; i < 31; ++i) put("fact " + std::to_string(i), kMiB)();
  put("fact 0", kMiB)();  // in the place of the same
  EXPECT_THAT(put("fact 31", kMiB), ThrowsMessage<InvalidArgument>(HasSubstr("finds no place")));
  put("fact 0", 0)();
  put("fact 31", kMiB)();
  EXPECT_EQ(store.facts("fact ").size(), 32u);
}

// The same name again and again, with messages lost, doubled and late.
TEST(Facts, AreGatheredAtBarriers) {
  for (const bool faulty : {false, true})
    for (const std::string mode : kModes) {
      SCOPED_TRACE(mode + (faulty ? " with faults" : ""));
      ClusterInProcess cluster(
          {.mode = mode, .workers = 3, .servers = servers_of(mode), .faulty = faulty, .serial = false});
      cluster.run([&](int worker, KVStore& store) {
        const NDArray weight = full(0, cluster.engine(worker));
        store.init({{"w", weight}});
        store.set_optimizer(optim::SGD{.lr = 1});
        for (int turn = 0; turn < (faulty ? 4 : 10); ++turn) {
          store.push("w", full(1, cluster.engine(worker)));
          store.pull("w", weight);
          store.step_end();
          GatheredValues expected;
          for (int rank = 0; rank < 3; ++rank) expected[rank] = std::to_string(100 * turn + rank);
          EXPECT_EQ(store.all_gather("turn", std::to_string(100 * turn + worker)), expected);
          if (turn % 3 == 0) store.barrier();
        }
      });
    }
}

TEST(Facts, AreNotGatheredUnderTwoNames) {
  for (const std::string mode : {"dist_sync", "gossip"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 2, .servers = servers_of(mode), .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      EXPECT_THAT([&] { store.all_gather(worker == 0 ? "loss" : "accuracy", "1"); },
                  ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("'loss'"), HasSubstr("'accuracy'"))));
      // The barrier is over for all, and the store goes on.
      EXPECT_EQ(store.all_gather("again", "x").size(), 2u);
    });
  }
}

TEST(Facts, AreNotGatheredWhereAnotherWorkerHasABarrier) {
  for (const std::string mode : {"dist_sync", "dist_async", "ring", "gossip"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 3, .servers = servers_of(mode), .serial = false});
    cluster.run([&](int worker, KVStore& store) {
      const auto meets = [&] { worker == 1 ? store.barrier() : void(store.all_gather("loss", "1")); };
      EXPECT_THAT(meets,
                  ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("gathers 'loss'"), HasSubstr("worker 1 calls"))));
      EXPECT_EQ(store.all_gather("again", "x").size(), 3u);
      store.barrier();
    });
  }
}

// What a lost worker gave before the others came does not count, and who takes its place reads the facts.
TEST(Facts, OutliveALostWorkerAndItsValuesDoNot) {
  for (const std::string mode : {"dist_sync", "dist_async:bound=2", "ring"}) {
    SCOPED_TRACE(mode);
    ClusterInProcess cluster({.mode = mode, .workers = 3, .servers = servers_of(mode), .serial = false});
    std::atomic<bool> joined = false;
    std::atomic<int> began = 0;
    cluster.run([&](int worker, KVStore& first) {
      KVStore* store = &first;
      const NDArray weight = full(0, cluster.engine(worker));
      store->init({{"w", weight}});
      store->backend().data_part(0);
      if (worker == 1) {
        store->put_fact("from 1", "kept");
        store->backend().data_commit(0, {{5, 6}}, "noted");
        store->barrier();
        cluster.kill_worker(1);
      } else {
        store->barrier();
        EXPECT_EQ(store->all_gather("without 1", std::to_string(worker)), (GatheredValues{{0, "0"}, {2, "2"}}));
      }
      ++began;
      if (worker == 1) {
        wait_for([&] { return began == 3; });
        cluster.join_worker(1);
        joined = true;
        store = &cluster.worker(1);
        EXPECT_EQ(store->facts("from"), (Facts{{"from 1", "kept"}}));
      }
      wait_for([&] { return joined.load(); });
      store->backend().data_part(1);
      if (worker == 1) store->init({{"w", weight}});
      EXPECT_EQ(store->all_gather("again", "x").size(), 3u);
      EXPECT_EQ(store->backend().data_notes(0), (std::vector<std::string>{"noted"}));
    });
  }
}

TEST(Facts, NotesComeInTheOrderOfTheirPositions) {
  for (const bool faulty : {false, true})
    for (const std::string mode : kModes) {
      SCOPED_TRACE(mode + (faulty ? " with faults" : ""));
      ClusterInProcess cluster(
          {.mode = mode, .workers = 2, .servers = servers_of(mode), .faulty = faulty, .serial = false});
      cluster.run([&](int worker, KVStore& store) {
        store.init({{"w", full(0, cluster.engine(worker))}});
        store.backend().data_part(0);
        for (std::int64_t i = 9; i >= 0; --i) {
          const std::int64_t begin = 4 * i + 2 * worker;
          store.backend().data_commit(0, {{begin, begin + 2}}, i % 2 == 0 ? std::to_string(begin) : "");
        }
        store.barrier();
        std::vector<std::string> notes;
        for (int i = 0; i < 10; i += 2)
          for (int rank = 0; rank < 2; ++rank) notes.push_back(std::to_string(4 * i + 2 * rank));
        EXPECT_EQ(store.backend().data_notes(0), notes);
        EXPECT_EQ(store.backend().data_committed(0), (PositionRanges{{0, 40}}));
        EXPECT_TRUE(store.backend().data_notes(1).empty());
      });
    }
}

}  // namespace
}  // namespace paceline::test
