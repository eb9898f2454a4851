// The book of who delivers what: every position once, whoever is lost and whenever.

#include <gmock/gmock.h>
#include <message.pb.h>
#include <support/cluster_in_process.h>

#include <algorithm>
#include <functional>
#include <future>
#include <latch>
#include <limits>
#include <mutex>
#include <optional>
#include <random>

#include "cluster_in_process.h"
#include "failed_array.h"
#include "position_set.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using test::job_config;
using test::member;
using test::SchedulerThread;
using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// What a worker's exchange does with its node.
class DataWorker {
 public:
  explicit DataWorker(const ClusterConfig& config) : node_(std::make_unique<Node>(config, Node::Handlers{})) {
    node_->join();
  }

  std::pair<int, int> part(std::int64_t epoch) {
    proto::DataPart body;
    body.set_epoch(epoch);
    const auto reply = ask<proto::DataPartReply>(MessageKind::kDataPart, body);
    return {reply.index(), reply.count()};
  }
  void begin(std::int64_t epoch, const Ranges& mine, const Ranges& all, bool on_request = false,
             const std::string& order = {}) {
    proto::DataBegin body;
    body.set_epoch(epoch);
    set(mine, *body.mutable_mine());
    set(all, *body.mutable_all());
    body.set_on_request(on_request);
    body.set_order(order);
    body.set_number(++begins_);
    ask<proto::DataPartReply>(MessageKind::kDataBegin, body);
  }
  void commit(std::int64_t epoch, const Ranges& done, const std::optional<std::string>& note = {}) {
    proto::DataCommit body;
    body.set_epoch(epoch);
    set(done, *body.mutable_done());
    if (note) body.set_note(*note);
    ask<proto::DataPartReply>(MessageKind::kDataCommit, body);
  }
  std::vector<std::string> notes(std::int64_t epoch) {
    proto::DataCommitted body;
    body.set_epoch(epoch);
    body.set_notes(true);
    const auto reply = ask<proto::DataCommittedReply>(MessageKind::kDataCommitted, body);
    return {reply.notes().begin(), reply.notes().end()};
  }
  Ranges take_over(std::int64_t epoch, bool wait, PieceSize size = {}) {
    proto::DataTakeOver body;
    body.set_epoch(epoch);
    body.set_wait(wait);
    body.set_wanted(size.wanted);
    body.set_multiple(size.multiple);
    body.set_number(++number_);
    const auto reply = ask<proto::DataTakeOverReply>(MessageKind::kDataTakeOver, body);
    Ranges ranges;
    for (int i = 0; i < reply.positions().bounds_size(); i += 2)
      ranges.emplace_back(reply.positions().bounds(i), reply.positions().bounds(i + 1));
    return ranges;
  }
  void barrier(std::uint64_t number) {
    proto::Barrier body;
    body.set_number(number);
    ask<proto::Barrier>(MessageKind::kBarrier, body);
  }
  void crash() { node_.reset(); }
  void leave() {
    node_->leave();
    node_.reset();
  }
  int rank() const { return node_->rank(); }

 private:
  static void set(const Ranges& from, proto::Ranges& to) {
    for (const auto& [begin, end] : from) {
      to.add_bounds(begin);
      to.add_bounds(end);
    }
  }
  template <class Reply, class Body>
  Reply ask(MessageKind kind, const Body& body) {
    Message message;
    message.header.kind = kind;
    message.body = body.SerializeAsString();
    Reply reply;
    EXPECT_TRUE(reply.ParseFromString(node_->ask_and_wait({Role::kScheduler, 0}, message).body));
    return reply;
  }

  std::unique_ptr<Node> node_;
  std::uint64_t number_ = 0, begins_ = 0;
};

class DataService : public testing::TestWithParam<bool> {
 protected:
  DataService() : job_(job_that_loses(GetParam())), scheduler_(job_) {
    std::vector<std::thread> threads;
    workers_.resize(3);
    for (int i = 0; i < 3; ++i)
      threads.emplace_back(
          [this, i] { workers_[i] = std::make_unique<DataWorker>(member(job_, Role::kWorker, 0, i)); });
    for (std::thread& thread : threads) thread.join();
  }
  // A worker that crashes counts as lost by its silence.
  static ClusterConfig job_that_loses(bool faulty) {
    ClusterConfig job = job_config("inproc", 0, 3, faulty);
    job.silence_deadline_seconds = 4;
    return job;
  }
  Ranges part_of(std::pair<int, int> part, std::int64_t size) {
    return {{size * part.first / part.second, size * (part.first + 1) / part.second}};
  }

  void every_position_is_committed_once(bool on_request);

  ClusterConfig job_;
  SchedulerThread scheduler_;
  std::vector<std::unique_ptr<DataWorker>> workers_;
};

INSTANTIATE_TEST_SUITE_P(Network, DataService, testing::Bool(),
                         [](const auto& info) { return info.param ? "faulty" : "good"; });

TEST_P(DataService, parts_are_fixed_by_the_first_that_asks) {
  for (int i = 2; i >= 0; --i) EXPECT_EQ(workers_[i]->part(0), std::make_pair(i, 3));
  workers_[1]->crash();
  workers_[1] = std::make_unique<DataWorker>(member(job_, Role::kWorker, 0));
  EXPECT_EQ(workers_[1]->part(0), std::make_pair(1, 3)) << "the part of the one whose place it took";
  workers_[1]->begin(0, {{10, 20}}, {{0, 30}});
  workers_[1]->crash();
  workers_[1] = std::make_unique<DataWorker>(member(job_, Role::kWorker, 0));
  EXPECT_EQ(workers_[1]->part(0), std::make_pair(0, 0)) << "the part was begun: others take over what is left";
  EXPECT_EQ(workers_[0]->part(1), std::make_pair(0, 3));
  EXPECT_EQ(workers_[1]->part(1), std::make_pair(1, 3));
  EXPECT_EQ(workers_[2]->part(0), std::make_pair(2, 3));
  workers_[0]->leave();
  workers_[1]->leave();
  workers_[2]->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, what_a_lost_worker_left_goes_to_the_others_in_pieces) {
  constexpr std::int64_t kSize = 6000;
  for (int i = 0; i < 3; ++i) workers_[i]->begin(0, part_of(workers_[i]->part(0), kSize), {{0, kSize}});
  workers_[0]->commit(0, {{0, 2000}});
  EXPECT_EQ(workers_[0]->take_over(0, false), Ranges());
  workers_[1]->commit(0, {{2000, 2500}, {3990, 4000}});
  workers_[1]->crash();
  const Ranges first = workers_[0]->take_over(0, true);
  PositionSet given(first);
  EXPECT_LT(given.count(), 1490);
  const Ranges second = workers_[2]->take_over(0, false);
  EXPECT_FALSE(second.empty());
  workers_[0]->commit(0, first);
  workers_[2]->commit(0, second);
  workers_[2]->commit(0, {{4000, 6000}});
  given.add(PositionSet(second));
  for (;;) {
    const Ranges more = workers_[0]->take_over(0, true);
    if (more.empty()) break;
    const std::int64_t before = given.count();
    given.add(PositionSet(more));
    EXPECT_EQ(given.count(), before + PositionSet(more).count()) << "given twice";
    workers_[0]->commit(0, more);
  }
  EXPECT_EQ(given.ranges(), (Ranges{{2500, 3990}}));
  workers_[0]->leave();
  workers_[2]->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, the_part_of_a_worker_lost_before_it_begins_is_covered) {
  constexpr std::int64_t kSize = 300;
  const Ranges all = {{0, 50}, {60, kSize}};  // a checkpoint had 50 to 60
  for (int i = 0; i < 3; ++i) workers_[i]->part(0);
  workers_[1]->crash();
  workers_[0]->begin(0, {{0, 50}, {60, 100}}, all);
  EXPECT_EQ(workers_[0]->take_over(0, false), Ranges()) << "worker 2 has not begun: nobody knows yet what is left";
  workers_[2]->begin(0, {{200, 300}}, all);
  EXPECT_EQ(workers_[0]->take_over(0, true), (Ranges{{100, 200}}));
  workers_[0]->commit(0, {{0, 300}});
  workers_[2]->commit(0, {{200, 300}});
  EXPECT_EQ(workers_[0]->take_over(0, true), Ranges());
  workers_[0]->leave();
  workers_[2]->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, who_trains_in_a_later_epoch_begins_no_evaluation_of_an_earlier_one) {
  constexpr std::int64_t kBefore = std::int64_t{1} << 40, kAfter = kBefore + 1;
  for (int i = 0; i < 3; ++i) workers_[i]->part(0);
  const auto two_evaluate = [&](std::int64_t number, const std::function<void()>& meanwhile) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(workers_[i]->part(number), std::make_pair(i, 3));
      workers_[i]->begin(number, {{10 * i, 10 * i + 10}}, {{0, 30}});
      workers_[i]->commit(number, {{10 * i, 10 * i + 10}}, "a note");
    }
    meanwhile();
    EXPECT_EQ(workers_[0]->take_over(number, true), (Ranges{{20, 30}}));
    workers_[0]->commit(number, {{20, 30}});
    for (int i = 0; i < 2; ++i) EXPECT_EQ(workers_[i]->take_over(number, true), Ranges());
    EXPECT_EQ(workers_[2]->part(number), std::make_pair(0, 0)) << "the others have delivered it";
  };
  two_evaluate(kBefore, [&] { workers_[2]->part(1); });
  two_evaluate(kAfter, [] {});
  EXPECT_EQ(workers_[0]->notes(kAfter).size(), 2);
  for (int i = 0; i < 2; ++i) workers_[i]->part(1);
  EXPECT_EQ(workers_[0]->notes(kAfter).size(), 0) << "nobody asks for them any more";
  for (auto& worker : workers_) worker->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, who_comes_late_to_an_epoch_that_nobody_has_begun_waits_for_the_others) {
  constexpr std::int64_t kEvaluation = std::int64_t{1} << 40;
  constexpr std::uint64_t kBarrier = (std::uint64_t{1} << 32) + 1;  // of epoch 0
  const auto part_later = [&](std::int64_t epoch) {
    auto part = std::async(std::launch::async, [this, epoch] { return workers_[1]->part(epoch); });
    EXPECT_EQ(part.wait_for(100ms), std::future_status::timeout) << "the others may write a checkpoint now";
    return part;
  };
  const auto return_1 = [&] {
    workers_[1]->crash();
    workers_[1] = std::make_unique<DataWorker>(member(job_, Role::kWorker, 0));
  };
  for (int i = 0; i < 3; ++i) workers_[i]->part(0);
  return_1();
  auto part = part_later(1);
  // The early one does not hide that the others wait for each other.
  for (int i = 0; i < 3; i += 2) EXPECT_EQ(workers_[i]->part(kEvaluation), std::make_pair(i, 3));
  workers_[0]->begin(kEvaluation, {{0, 10}}, {{0, 20}});
  workers_[0]->commit(kEvaluation, {{0, 10}});
  auto end = std::async(std::launch::async, [&] { return workers_[0]->take_over(kEvaluation, true); });
  EXPECT_THAT(test::error_of_call([&] { workers_[2]->barrier(kBarrier); }),
              testing::HasSubstr("waits for the end of the epoch"));
  workers_[2]->begin(kEvaluation, {{10, 20}}, {{0, 20}});
  workers_[2]->commit(kEvaluation, {{10, 20}});
  EXPECT_EQ(end.get(), Ranges());
  EXPECT_EQ(workers_[2]->part(1), std::make_pair(2, 3));
  EXPECT_EQ(part.get(), std::make_pair(1, 3));
  EXPECT_EQ(workers_[1]->part(2), std::make_pair(1, 3)) << "it has trained, so it is as the others are";
  return_1();
  part = part_later(3);
  workers_[0]->leave();
  workers_[2]->leave();
  EXPECT_EQ(part.get(), std::make_pair(0, 1)) << "nobody is left for whom it could wait";
  workers_[1]->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, who_takes_over_and_is_lost_too_leaves_it_again) {
  for (int i = 0; i < 3; ++i) workers_[i]->begin(5, {{i * 10, i * 10 + 10}}, {{0, 30}});
  workers_[0]->crash();
  EXPECT_EQ(workers_[1]->take_over(5, true), (Ranges{{0, 10}}));
  workers_[1]->crash();
  workers_[2]->commit(5, {{20, 30}});
  EXPECT_EQ(workers_[2]->take_over(5, true), (Ranges{{0, 20}}));
  workers_[2]->commit(5, {{0, 20}});
  EXPECT_EQ(workers_[2]->take_over(5, true), Ranges());
  workers_[2]->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, what_is_given_out_on_request_shrinks_towards_the_end) {
  constexpr std::int64_t kSize = 1003;
  for (auto& worker : workers_) worker->begin(0, {}, {{0, kSize}}, true);
  EXPECT_EQ(workers_[0]->take_over(0, false, {100, 10}), (Ranges{{0, 100}}));
  EXPECT_EQ(workers_[1]->take_over(0, false, {37, 10}), (Ranges{{100, 130}}));
  EXPECT_EQ(workers_[2]->take_over(0, false, {1, 10}), (Ranges{{130, 140}})) << "a batch at least";
  workers_[1]->crash();
  std::int64_t begin = 140, last = 100;
  Ranges piece;
  for (auto& worker : {&workers_[0], &workers_[2]}) (*worker)->commit(0, {{0, 100}, {130, 140}});
  PositionSet given;
  while (!(piece = workers_[0]->take_over(0, true, {100, 10})).empty()) {
    const std::int64_t count = PositionSet(piece).count();
    if (piece.front().first >= 140) {  // the lost one's may come late
      EXPECT_LE(count, last);
    }
    EXPECT_TRUE(count % 10 == 0 || piece.back().second == kSize) << count;
    if (piece.front().first >= 140) last = count;
    given.add(PositionSet(piece));
    begin += count;
    workers_[0]->commit(0, piece);
  }
  EXPECT_LE(last, 10);
  EXPECT_EQ(given.ranges(), (Ranges{{100, 130}, {140, kSize}})) << "what the lost one had, too";
  EXPECT_EQ(begin, kSize + 30);
  workers_[0]->leave();
  workers_[2]->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, no_number_of_a_request_gives_more_than_there_is) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (auto& worker : workers_) worker->begin(0, {}, {{0, 1000}}, true);
  EXPECT_EQ(workers_[0]->take_over(0, false, {kMost, kMost}), (Ranges{{0, 1000}}));
  EXPECT_EQ(workers_[1]->take_over(0, false, {kMost, kMost}), Ranges());
  EXPECT_EQ(workers_[1]->take_over(0, false, {-5, -kMost}), Ranges());
  for (auto& worker : workers_) worker->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, the_largest_number_is_no_epoch) {
  for (const std::int64_t epoch :
       {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
    const auto is_no_epoch =
        testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("is not the number of an epoch"));
    EXPECT_THAT([&] { workers_[0]->part(epoch); }, is_no_epoch);
    EXPECT_THAT([&] { workers_[0]->begin(epoch, {{0, 10}}, {{0, 20}}); }, is_no_epoch);
    EXPECT_THAT([&] { workers_[0]->commit(epoch, {{0, 10}}); }, is_no_epoch);
    EXPECT_THAT([&] { workers_[0]->take_over(epoch, false); }, is_no_epoch);
  }
  for (auto& worker : workers_) worker->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, who_leaves_an_epoch_and_comes_back_gives_back_what_it_took) {
  for (auto& worker : workers_) worker->begin(0, {}, {{0, 60}}, true);
  EXPECT_EQ(workers_[0]->take_over(0, false, {10, 10}), (Ranges{{0, 10}}));
  workers_[0]->commit(0, {{0, 4}});
  workers_[0]->begin(0, {}, {{4, 60}}, true);
  PositionSet given;
  for (Ranges piece; !(piece = workers_[1]->take_over(0, true, {10, 10})).empty(); workers_[1]->commit(0, piece))
    given.add(PositionSet(piece));
  EXPECT_EQ(given.ranges(), (Ranges{{4, 60}}));
  EXPECT_EQ(workers_[0]->take_over(0, true, {10, 10}), Ranges());
  for (auto& worker : workers_) worker->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

TEST_P(DataService, workers_that_differ_in_how_they_share_are_refused) {
  workers_[0]->begin(0, {}, {{0, 100}}, true, "seed=1");
  EXPECT_THAT(test::error_of_call([&] {
                workers_[1]->begin(0, {{50, 100}}, {{0, 100}}, false, "seed=1");
              }),
              testing::HasSubstr("start all workers with the same balance"));
  EXPECT_THAT(test::error_of_call([&] {
                workers_[2]->begin(0, {}, {{0, 100}}, true, "seed=2");
              }),
              testing::HasSubstr("would deliver epoch 1 in the order 'seed=2', and the others in 'seed=1'"));
  EXPECT_THAT(test::error_of_call([&] {
                workers_[0]->begin(0, {}, {{0, 100}}, true, "unshuffled");
              }),
              testing::HasSubstr("another iterator of this worker has begun epoch 1"));
  EXPECT_EQ(workers_[0]->take_over(0, false, {10, 10}), (Ranges{{0, 10}}));
  EXPECT_EQ(test::error_of_call([&] {
              workers_[1]->begin(1, {{0, 50}}, {{0, 100}}, false, "an iterator's own words, \xff");
            }),
            "");
  for (auto& worker : workers_) worker->leave();
  EXPECT_EQ(scheduler_.result(), "");
}

// Three workers deliver four epochs in batches; one is lost at a random moment. What was committed by survivors or
// delivered and committed by the lost one covers every epoch, and no position was committed twice.
TEST_P(DataService, every_position_is_committed_once) { every_position_is_committed_once(false); }
TEST_P(DataService, every_position_is_committed_once_on_request) { every_position_is_committed_once(true); }

void DataService::every_position_is_committed_once(bool on_request) {
  constexpr std::int64_t kSize = 3000, kBatch = 50, kEpochs = 4;
  const PieceSize piece = {on_request ? 170 : 0, kBatch};
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const auto crash_after = static_cast<int>(std::mt19937_64(seed)() % 70);
  std::mutex mutex;
  std::vector<std::vector<int>> delivered(kEpochs, std::vector<int>(kSize));
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      DataWorker& worker = *workers_[i];
      int batches = 0;
      const auto deliver = [&](std::int64_t epoch, const Ranges& ranges) {
        for (const auto& [from, to] : ranges)
          for (std::int64_t at = from; at < to; at += kBatch) {
            if (i == 1 && ++batches > crash_after) return false;
            const Ranges batch = {{at, std::min(at + kBatch, to)}};
            worker.commit(epoch, batch);
            const std::lock_guard lock(mutex);
            for (std::int64_t p = batch[0].first; p < batch[0].second; ++p) ++delivered[epoch][p];
          }
        return true;
      };
      for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
        const Ranges part = part_of(worker.part(epoch), kSize), mine = on_request ? Ranges() : part;
        worker.begin(epoch, mine, {{0, kSize}}, on_request);
        if (!deliver(epoch, mine)) {
          worker.crash();
          return;
        }
        for (Ranges more; !(more = worker.take_over(epoch, false, piece)).empty();)
          if (!deliver(epoch, more)) return worker.crash();
      }
      for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch)
        for (Ranges more; !(more = worker.take_over(epoch, true, piece)).empty();)
          if (!deliver(epoch, more)) return worker.crash();
      worker.leave();
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& epoch : delivered) EXPECT_THAT(epoch, testing::Each(1));
  EXPECT_EQ(scheduler_.result(), "");
}

// A worker whose commits do not arrive waits: if it is lost, only its last steps are delivered again.
TEST(DataCommits, WaitForTheSchedulerThatIsLate) {
  for (const std::string mode : {"dist_sync", "dist_async", "ring", "gossip"}) {
    SCOPED_TRACE(mode);
    test::ClusterInProcess cluster({.mode = mode,
                                    .servers = mode.starts_with("dist") ? 1 : 0,
                                    .faults = "cut worker0->scheduler at step 1 for 1s"});
    std::latch returned{1};
    cluster.run([&](int worker, KVStore& store) {
      Backend& backend = store.backend();
      backend.data_part(0);
      backend.data_begin(0, {.mine = {{9 * worker, 9 * (worker + 1)}}, .all = {{0, 18}}});
      store.barrier();
      if (worker == 0) {
        store.step_end();  // from here on the scheduler does not hear this worker
        for (int i = 0; i < 3; ++i) backend.data_commit(0, {{i, i + 1}});
        std::this_thread::sleep_for(150ms);
        backend.data_commit(0, {{3, 4}});
        returned.count_down();
      } else {
        returned.wait();
        EXPECT_FALSE(backend.data_committed(0).empty());
      }
      store.barrier();
    });
  }
}

// Otherwise the two would wait for each other without end.
TEST(EndOfAnEpoch, RefusesACollectiveCallOfAWorkerThatHasBatchesLeft) {
  for (const std::string mode : {"dist_sync", "dist_async", "dist_local", "ring", "gossip"}) {
    SCOPED_TRACE(mode);
    test::ClusterInProcess cluster({.mode = mode, .servers = mode.starts_with("dist") ? 1 : 0});
    cluster.run([&](int worker, KVStore& store) {
      Backend& backend = store.backend();
      backend.data_part(0);
      const PositionRanges mine = worker == 0 ? PositionRanges{} : PositionRanges{{0, 4}};
      backend.data_begin(0, {.mine = mine, .all = {{0, 4}}});
      store.barrier();
      if (worker == 1) {
        EXPECT_THAT(test::error_of_call([&] { store.all_gather("loss", "1"); }),
                    testing::HasSubstr("all_gather() of 'loss' within an epoch, and worker 0 has no batch left"));
        return store.finish();
      }
      EXPECT_EQ(backend.data_take_over(0, true), (PositionRanges{{0, 4}}));
      backend.data_commit(0, {{0, 4}});
    });
  }
}

// Begins an epoch of nine positions, and makes a step whose push succeeds: position 0 counts as delivered.
void deliver_one(KVStore& store, const NDArray& weight, const NDArray& gradient) {
  store.init({{"w", weight}});
  store.set_optimizer(optim::SGD{.lr = 1});
  store.backend().data_part(0);
  store.backend().data_begin(0, {.mine = {{0, 9}}, .all = {{0, 9}}});
  store.push_pull({{"w", gradient}}, {{"w", weight}});
  store.backend().data_commit(0, {{0, 1}});
  store.step_end();
  weight.wait();
}

// A worker whose push was refused, or was never sent, has not delivered what the gradient was made of.
TEST(DataOfAFailedPush, DoesNotCountAsDelivered) {
  for (const bool refused : {true, false}) {
    SCOPED_TRACE(refused);
    test::ClusterInProcess cluster({.mode = "dist_sync", .workers = 1, .servers = 1, .serial = false});
    cluster.run([&](int, KVStore& store) {
      Engine& engine = cluster.engine(0);
      Backend& backend = store.backend();
      const NDArray weight = NDArray::zeros(Shape{1}, DType::kFloat32, {}, engine);
      const NDArray gradient = NDArray::zeros(Shape{1}, DType::kFloat32, {}, engine);
      deliver_one(store, weight, gradient);

      if (refused)
        store.push("w", gradient);  // and once more: twice in one step
      else
        test::fail(gradient);
      store.push("w", gradient);
      backend.data_commit(0, {{1, 2}});
      store.step_end();
      store.pull("w", weight);
      EXPECT_THROW(weight.wait(), Error);
      EXPECT_EQ(backend.data_committed(0), (PositionRanges{{0, 1}}));
      EXPECT_THAT(test::error_of_call([&] { backend.data_take_over(0, true); }),
                  testing::HasSubstr(refused ? "twice in step" : "has failed"));
    });
    cluster.abandon();
  }
}

// The data is committed after the step of the push, and after a pull that has failed because of it.
TEST(DataOfAFailedPush, DoesNotCountAsDeliveredWhenItsStepIsOver) {
  for (const std::string mode : {"dist_sync", "ring"}) {
    SCOPED_TRACE(mode);
    test::ClusterInProcess cluster({.mode = mode, .workers = 1, .servers = mode == "ring" ? 0 : 1, .serial = false});
    cluster.run([&](int, KVStore& store) {
      Engine& engine = cluster.engine(0);
      Backend& backend = store.backend();
      const NDArray weight = NDArray::zeros(Shape{1}, DType::kFloat32, {}, engine);
      const NDArray gradient = NDArray::zeros(Shape{1}, DType::kFloat32, {}, engine);
      deliver_one(store, weight, gradient);

      test::fail(gradient);
      store.push("w", gradient);
      store.step_end();
      store.pull("w", weight);
      EXPECT_THROW(weight.wait(), Error);
      store.barrier();  // the step of the failed push is over now
      backend.data_commit(0, {{1, 2}});
      EXPECT_EQ(backend.data_committed(0), (PositionRanges{{0, 1}}));
      EXPECT_THAT(test::error_of_call([&] { backend.data_take_over(0, false); }), testing::HasSubstr("has failed"));
    });
    cluster.abandon();
  }
}

}  // namespace
}  // namespace paceline
