#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/cores.h>
#include <paceline/updater.h>
#include <paceline/worker_rule.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "dense_partition.h"
#include "failed_array.h"

namespace paceline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
std::vector<T> weights(Updater& updater, int slice, int worker = -1) {
  const Snapshot snapshot = updater.pull(slice, worker);
  const T* data = reinterpret_cast<const T*>(snapshot.data.get());
  return std::vector<T>(data, data + snapshot.bytes / sizeof(T));
}

// One float64 key that `workers` workers have pulled at version 0.
struct Scalar {
  std::unique_ptr<Updater> updater = make_updater();
  int slice = 0;

  Scalar(const std::string& optimizer, const std::string& policy, const std::string& options, double weight,
         int workers = 3) {
    updater->set_rules(Spec::parse(optimizer), policy, Options::parse(options));
    updater->set_workers(workers);
    slice = updater->add_slice({.name = "w", .end = 1, .dtype = DType::kFloat64}, &weight);
    for (int worker = 0; worker < workers; ++worker) updater->pull(slice, worker);
  }
  double push(int worker, std::uint64_t version, double gradient) {
    updater->apply(slice, {.worker = worker, .version = version, .examples = 1, .gradient = &gradient});
    return weights<double>(*updater, slice)[0];
  }
};

// T1.3 of the algorithms page: three workers pull 1 and push 2 in turn.
TEST(DelayCompensated, ConstantFollowsTheScript) {
  Scalar key("sgd:lr=0.1", "delay_compensated", "adaptive=0,lambda=0.5,clip=0", 1);
  EXPECT_NEAR(key.push(0, 0, 2), 0.8, 1e-15);
  EXPECT_NEAR(key.push(1, 0, 2), 0.64, 1e-15);
  EXPECT_NEAR(key.push(2, 0, 2), 0.512, 1e-15);
}

// T1.3b: the adaptive rule overshoots here, the clipped one stops at g - |g|.
TEST(DelayCompensated, AdaptiveFollowsTheScript) {
  Scalar free("sgd:lr=0.1", "delay_compensated", "lambda=2,decay=0.95,clip=0", 1);
  EXPECT_NEAR(free.push(0, 0, 2), 0.8, 1e-12);
  EXPECT_NEAR(free.push(1, 0, 2), 0.856205, 1e-6);
  Scalar clipped("sgd:lr=0.1", "delay_compensated", "lambda=2,decay=0.95", 1);
  EXPECT_NEAR(clipped.push(0, 0, 2), 0.8, 1e-12);
  EXPECT_NEAR(clipped.push(1, 0, 2), 0.8, 1e-12);
}

TEST(InverseDelay, DividesByTheDelay) {
  Scalar key("sgd:lr=1", "inverse_delay", "", 0);
  EXPECT_DOUBLE_EQ(key.push(0, 0, 1), -1);
  EXPECT_DOUBLE_EQ(key.push(1, 0, 1), -2);
  EXPECT_DOUBLE_EQ(key.push(2, 0, 1), -2.5);
}

TEST(InverseDelay, IsGentlerWithAnOffsetOrARoot) {
  Scalar offset("sgd:lr=1", "inverse_delay", "offset=1", 0);
  offset.push(0, 0, 1);
  EXPECT_DOUBLE_EQ(offset.push(1, 0, 1), -1.5);
  EXPECT_DOUBLE_EQ(offset.push(2, 0, 1), -1.5 - 1.0 / 3);
  Scalar root("sgd:lr=1", "inverse_delay", "power=0.5,offset=1", 0);
  root.push(0, 0, 1);
  EXPECT_DOUBLE_EQ(root.push(1, 0, 1), -1 - std::sqrt(0.5));
  EXPECT_THROW(make_staleness("inverse_delay", Options::parse("power=-1")), InvalidArgument);
}

TEST(DelayAdaptive, KeepsTheFullRateUpToTheNumberOfWorkers) {
  Scalar key("sgd:lr=1", "delay_adaptive", "", 0, 2);
  for (const double expected : {-1.0, -2.0, -3.0}) EXPECT_DOUBLE_EQ(key.push(0, 0, 1), expected);
  EXPECT_DOUBLE_EQ(key.push(0, 0, 1), -3 - 2.0 / 3);
  EXPECT_DOUBLE_EQ(key.push(0, 0, 1), -3 - 2.0 / 3 - 2.0 / 4);
  Scalar early("sgd:lr=1", "delay_adaptive", "full_rate_delay=1", 0, 2);
  early.push(0, 0, 1);
  early.push(0, 0, 1);
  EXPECT_DOUBLE_EQ(early.push(0, 0, 1), -2.5);
}

TEST(DelayCompensated, LambdaFollowsTheExamples) {
  const auto third_push = [](const char* options, std::int64_t examples) {
    Scalar key("sgd:lr=0.1", "delay_compensated", options, 1);
    const double gradient = 0.25;
    for (int worker = 0; worker < 3; ++worker)
      key.updater->apply(0, {.worker = worker, .version = 0, .examples = examples, .gradient = &gradient});
    return weights<double>(*key.updater, 0)[0];
  };
  EXPECT_EQ(third_push("clip=0,adaptive=0", 24), third_push("clip=0,adaptive=0,lambda=24", 1));
  EXPECT_EQ(third_push("clip=0", 64), third_push("clip=0,lambda=2", 1));
  EXPECT_EQ(third_push("clip=0", 128), third_push("clip=0,lambda=4", 1));
  EXPECT_NE(third_push("clip=0", 128), third_push("clip=0", 64));
}

TEST(Discard, RefusesAndCounts) {
  Scalar key("sgd:lr=1", "discard", "discard_above=1", 0);
  key.push(0, 0, 1);
  key.push(1, 0, 1);
  EXPECT_DOUBLE_EQ(key.push(2, 0, 1), -2);
  EXPECT_EQ(key.updater->refused(), 1);
}

TEST(GapAware, DividesByTheGapInTypicalSteps) {
  Scalar key("sgd:lr=0.1", "gap_aware", "gap_decay=0.5", 1, /*workers=*/1);
  key.push(0, 0, 2);
  key.updater->pull(key.slice, 5);  // version 1, weight 0.8
  key.push(0, 1, 2);                // weight 0.6
  // The average of squares is 4 whatever the decay, once its start is corrected: C = 0.1 * 2, gap 0.2, penalty 2.
  EXPECT_NEAR(key.push(5, 1, 2), 0.6 - 0.1 * 1, 1e-7);
}

TEST(GapAware, DividesTheFirstLateGradients) {
  Scalar key("sgd:lr=0.1", "gap_aware", "", 1);
  EXPECT_NEAR(key.push(0, 0, 2), 0.8, 1e-12);
  // C = 0.1 * 2; the gaps are 0.2 and 0.3.
  EXPECT_NEAR(key.push(1, 0, 2), 0.7, 1e-7);
  EXPECT_NEAR(key.push(2, 0, 2), 0.7 - 0.1 * 2 / 2.5, 1e-7);
}

TEST(GapAware, DoesNotTouchFreshGradients) {
  Scalar corrected("sgd:lr=0.1", "gap_aware", "", 1, 1), plain("sgd:lr=0.1", "none", "", 1, 1);
  for (std::uint64_t version = 0; version < 100; ++version) {
    corrected.updater->pull(corrected.slice, 0);
    const double gradient = std::sin(static_cast<double>(version));
    ASSERT_EQ(corrected.push(0, version, gradient), plain.push(0, version, gradient));
  }
}

TEST(Policies, CombineAndNameWhatIsUnknown) {
  EXPECT_TRUE(make_staleness("dana+gap_aware", {})->needs_pulled());
  EXPECT_THAT(make_staleness("gap_aware+delay_compensated", {})->state_names(),
              ElementsAre("gap_aware_mean_square", "delay_compensated_mean_square"));
  try {
    make_staleness("dana+gapaware", {});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown staleness 'gapaware'; known: none"));
  }
  EXPECT_THROW(make_staleness("none", Options::parse("lambda=1")), InvalidArgument);
  EXPECT_THROW(make_updater()->set_rules(Spec::parse("adam"), "dana", {}), InvalidArgument);
  EXPECT_THROW(make_worker_rule(Spec::parse("adam"), "dana"), InvalidArgument);
  EXPECT_EQ(make_worker_rule(Spec::parse("adam"), "gap_aware"), nullptr);
}

// The library's sentence "one worker with dana is exactly NAG".
TEST(Dana, OneWorkerIsNesterovBitForBit) {
  const std::string optimizer = "nesterov:lr=0.05,momentum=0.9,weight_decay=0.01,clip_gradient=2";
  constexpr std::int64_t kSize = 3000;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> start(kSize);
  for (float& w : start) w = normal(random);

  auto nag = make_updater(), dana = make_updater();
  nag->set_rules(Spec::parse(optimizer), "none", {});
  dana->set_rules(Spec::parse(optimizer), "dana+gap_aware", {});
  const SliceInfo info{.name = "w", .end = kSize};
  nag->add_slice(info, start.data());
  dana->add_slice(info, start.data());
  const auto rule = make_worker_rule(Spec::parse(optimizer), "dana+gap_aware");
  for (std::uint64_t step = 0; step < 50; ++step) {
    std::vector<float> gradient(kSize);
    for (float& g : gradient) g = 2 * normal(random);
    nag->apply(0, {.worker = 0, .version = step, .examples = 1, .gradient = gradient.data()});

    const std::vector<float> weight = weights<float>(*dana, 0, 0);
    const NDArray update = rule->prepare("w", NDArray::from(gradient, {kSize}), NDArray::from(weight, {kSize}));
    const std::vector<float> pushed = update.to_vector<float>();
    dana->apply(0, {.worker = 0, .version = step, .examples = 1, .gradient = pushed.data()});
    ASSERT_EQ(weights<float>(*nag, 0), weights<float>(*dana, 0)) << "step " << step;
  }
}

TEST(Dana, TheVelocityOutlivesAFailedGradient) {
  const auto rule = make_worker_rule(Spec::parse("momentum:lr=1,momentum=0.5"), "dana");
  const NDArray weight = NDArray::zeros({2}), good = NDArray::full({2}, 1), bad = NDArray::full({2}, 1);
  test::fail(bad);
  EXPECT_EQ(rule->prepare("w", good, weight).to_vector<float>(), (std::vector<float>{1.5, 1.5}));
  EXPECT_THROW(rule->prepare("w", bad, weight).wait(), InvalidArgument);
  const auto next = make_worker_rule(Spec::parse("momentum:lr=1,momentum=0.5"), "dana");
  next->load(rule->state());  // as a set_optimizer() does
  EXPECT_EQ(next->prepare("w", good, weight).to_vector<float>(), (std::vector<float>{1.75, 1.75}));
}

// A checkpoint may be thousands of updates later than the weights before the load.
TEST(Predict, BeginsAnewAfterALoad) {
  const auto rule = make_worker_rule(Spec::parse("sgd"), "predict");
  const auto pulled = [&](std::uint64_t version, float value) {
    const NDArray weight = NDArray::full({1}, value);
    const PulledRun run{0, 1, version};
    rule->pulled("w", {&run, 1}, 1, weight);
    return weight.item<float>();
  };
  pulled(1, 0);
  pulled(3, 1);
  EXPECT_GT(pulled(5, 2), 2);
  rule->load({});
  EXPECT_EQ(pulled(1000, 7), 7);
}

TEST(Updater, AppliesARoundAsOneWeightedMean) {
  Scalar key("momentum:lr=1,momentum=0.5", "none", "", 0, 2);
  const double a = 1, b = 4;
  const std::vector<Contribution> round{{.worker = 0, .examples = 1, .gradient = &a},
                                        {.worker = 1, .examples = 2, .gradient = &b}};
  const Applied applied = key.updater->apply_round(key.slice, round);
  EXPECT_EQ(applied.version, 1u);
  EXPECT_NEAR(weights<double>(*key.updater, key.slice)[0], -3, 1e-15);
}

TEST(Updater, CountsDelaysPerWorker) {
  Scalar key("sgd:lr=0.1", "none", "", 1, 2);
  key.push(0, 0, 1);
  key.push(1, 0, 1);
  key.push(1, 2, 1);
  const auto delays = key.updater->delays();
  ASSERT_EQ(delays.size(), 2u);
  EXPECT_EQ(delays[0].text(), "0:1");
  EXPECT_EQ(delays[1].text(), "0:1 1:1");
  EXPECT_THROW(key.push(0, 9, 1), InvalidArgument);
}

TEST(Updater, WorkersThatPulledTheSameVersionShareTheMemory) {
  Scalar key("sgd", "gap_aware", "", 1, 4);
  EXPECT_EQ(key.updater->pulled_bytes(), sizeof(double));
  key.push(0, 0, 1);
  key.updater->pull(key.slice, 0);
  EXPECT_EQ(key.updater->pulled_bytes(), 2 * sizeof(double));
  key.updater->drop_worker(key.slice, 0);
  EXPECT_EQ(key.updater->pulled_bytes(), sizeof(double));
}

TEST(Updater, ASnapshotNeverChanges) {
  Scalar key("sgd:lr=1", "none", "", 1, 1);
  const Snapshot before = key.updater->pull(key.slice, 0);
  key.push(0, 0, 5);
  EXPECT_EQ(*reinterpret_cast<const double*>(before.data.get()), 1);
}

TEST(Updater, AverageKeysHoldTheMeanOverWorkers) {
  auto updater = make_updater();
  const float zero[2] = {0, 0}, one[2] = {2, 4}, two[2] = {4, 8};
  const SliceInfo info{.name = "running_mean", .end = 2, .kind = SliceInfo::Kind::kAverage};
  updater->add_slice(info, zero);
  updater->apply(0, {.worker = 0, .version = 0, .gradient = one});
  updater->apply(0, {.worker = 1, .version = 0, .gradient = two});
  EXPECT_THAT(weights<float>(*updater, 0), ElementsAre(3, 6));
  updater->drop_worker(0, 0);
  EXPECT_THAT(weights<float>(*updater, 0), ElementsAre(4, 8));
  // What workers said before it is no part of what is loaded.
  updater->load_slice(0, {{"weight", NDArray::from<float>({1, 1}, Shape{2})}}, {});
  updater->apply(0, {.worker = 0, .version = 0, .gradient = one});
  EXPECT_THAT(weights<float>(*updater, 0), ElementsAre(2, 4));
}

TEST(Updater, ALostWorkersPartInTheMeanEndsWhenAnotherWorkerHasOne) {
  auto updater = make_updater();
  const float zero = 0, two = 2, four = 4, eight = 8;
  updater->add_slice({.name = "running_mean", .end = 1, .kind = SliceInfo::Kind::kAverage}, &zero);
  const auto push = [&](int worker, const float& value) {
    updater->apply(0, {.worker = worker, .version = 0, .gradient = &value});
    return weights<float>(*updater, 0)[0];
  };
  push(1, two);
  updater->drop_worker(0, 1);
  EXPECT_EQ(weights<float>(*updater, 0)[0], 2);  // no other worker has a part
  EXPECT_EQ(push(0, four), 4);
  EXPECT_EQ(push(1, eight), 6);  // the worker is back
}

// The server learns of the loss after the push, and before the round is closed.
TEST(DensePartition, ARoundLeavesOutTheStatisticsOfALostWorker) {
  const float zero = 0, two = 2, four = 4, eight = 8;
  const std::pair<SliceInfo, const void*> slice({.name = "running_mean", .end = 1, .kind = SliceInfo::Kind::kAverage},
                                                &zero);
  DensePartition partition(0, {&slice, 1});
  const auto push = [&](WorkerIncarnation from, std::uint64_t round, const float& value) {
    SliceContribution given{0, {.worker = from.worker, .version = 0, .gradient = &value}};
    const PushEntry::InRound in{Verdict::kKept, round, round};
    PushEntry entry;
    entry.from = from;
    entry.sequence = entry.step = round + 1;
    entry.gradients = {&given, 1};
    entry.rounds = {&in, 1};
    partition.apply(entry);
  };
  const auto close = [&](std::uint64_t round) {
    CloseEntry entry{{}, 0, round};
    partition.apply(entry);
    return partition.save(0, nullptr).front().second.to_vector<float>()[0];
  };
  push({1, 1}, 0, two);
  LostEntry lost{{}, 1};
  partition.apply(lost);
  push({0, 2}, 0, four);
  EXPECT_EQ(close(0), 4);
  push({1, 3}, 1, eight);  // the worker is back
  EXPECT_EQ(close(1), 6);
  push({1, 3}, 2, two);
  push({0, 2}, 2, two);
  partition.apply(lost);
  lost.worker = 0;
  partition.apply(lost);
  EXPECT_EQ(close(2), 2);  // no other worker has statistics
  push({1, 4}, 3, eight);
  EXPECT_EQ(close(3), 8);
}

TEST(Updater, StateSurvivesSaveAndLoad) {
  Scalar first("adam:lr=0.1", "gap_aware", "", 1, 1);
  for (std::uint64_t i = 0; i < 5; ++i) first.push(0, i, 1.0 + static_cast<double>(i));
  SliceCounters counters;
  const NamedArrays state = first.updater->save_slice(0, &counters);
  EXPECT_EQ(counters.version, 5u);
  EXPECT_EQ(counters.examples, 5);
  EXPECT_EQ(counters.optimizer_updates, 5);
  EXPECT_EQ(counters.policy_updates, 5);
  ASSERT_EQ(state.size(), 4u);
  Scalar second("adam:lr=0.1", "gap_aware", "", 0, 1);
  second.updater->load_slice(0, state, counters);
  EXPECT_EQ(second.push(0, 5, 2), first.push(0, 5, 2));
  EXPECT_THROW(second.updater->load_slice(0, {{"velocity", state[0].second}}, counters), InvalidArgument);
}

// State that begins in mid-run begins its bias correction, too: the first step of Adam is the learning rate, whatever
// the version, and the first averages of gap_aware judge nobody.
TEST(Updater, CountsUpdatesFromWhereTheStateBegan) {
  Scalar key("sgd:lr=0.1", "none", "", 1, 1);
  for (std::uint64_t version = 0; version < 1000; ++version) key.push(0, version, 0);
  const auto change = [&](const char* optimizer, const char* policy) {
    key.updater->set_rules(Spec::parse(optimizer), policy, {});
    SliceCounters counters;
    key.updater->save_slice(0, &counters);
    return counters;
  };
  EXPECT_EQ(change("adam:lr=0.1", "gap_aware").optimizer_updates, 0);
  EXPECT_NEAR(key.push(0, 1000, 5), 0.9, 1e-7);
  key.push(0, 1001, 5);
  const SliceCounters kept = change("adam:lr=0.2", "gap_aware");  // the same state goes on
  EXPECT_EQ(kept.version, 1002u);
  EXPECT_EQ(kept.optimizer_updates, 2);
  EXPECT_EQ(kept.policy_updates, 2);
  const SliceCounters restarted = change("momentum:lr=0.2", "gap_aware");
  EXPECT_EQ(restarted.optimizer_updates, 0);
  EXPECT_EQ(restarted.policy_updates, 2);

  // From a checkpoint of a job with other rules.
  Scalar loaded("adam:lr=0.1", "gap_aware", "", 0, 1);
  loaded.updater->load_slice(0, {{"weight", NDArray::from<double>({1}, Shape{1})}}, {5000, 5000, 5000, 5000});
  EXPECT_NEAR(loaded.push(0, 5000, -3), 1.1, 1e-7);
}

TEST(Updater, RulesMayNameAPolicyOfTheUsersOwn) {
  Scalar key("sgd:lr=1", "none", "", 0, 1);
  key.updater->set_rules(Spec::parse("sgd:lr=2"), "seven", {},
                         {.policies = {{"seven", element_rule([](auto, const auto&) { return 7; }, false)}}});
  key.push(0, 0, 1);
  EXPECT_EQ(key.push(0, 0, 1), -2 - 14);
}

TEST(Updater, CopiesTheWeightsAfterWhateverCameOfAPush) {
  const auto updater = make_updater();
  updater->set_rules(Spec::parse("sgd:lr=1"), "discard", Options::parse("discard_above=1"));
  const std::int64_t large = (16 << 20) / 4 + 3;  // goes past the caches
  const std::vector<float> zeros(static_cast<std::size_t>(large)), ones(zeros.size(), 1);
  updater->add_slice({.name = "large", .end = large}, zeros.data());
  updater->add_slice({.name = "mean", .end = 2, .kind = SliceInfo::Kind::kAverage}, zeros.data());
  const auto copy_of = [&](int slice, std::size_t count, int worker, bool refused) {
    std::vector<float> copy(count, 5);
    const Contribution push{.worker = worker, .version = 0, .examples = 1, .gradient = ones.data()};
    EXPECT_EQ(updater->apply(slice, push, copy.data()).refused, refused);
    return copy;
  };
  EXPECT_TRUE(copy_of(0, zeros.size(), 0, false) == std::vector<float>(zeros.size(), -1));
  const std::vector<float> minus_two(zeros.size(), -2);
  EXPECT_TRUE(copy_of(0, zeros.size(), 1, false) == minus_two);
  EXPECT_TRUE(copy_of(0, zeros.size(), 2, true) == minus_two);
  EXPECT_THAT(copy_of(1, 2, 0, false), ElementsAre(1, 1));
}

TEST(Updater, SlicesTakeUpdatesFromManyThreads) {
  auto updater = make_updater();
  updater->set_rules(Spec::parse("sgd:lr=1"), "none", {});
  const std::vector<float> zeros(5000);
  for (int key = 0; key < 4; ++key) updater->add_slice({.name = std::to_string(key), .end = 5000}, zeros.data());
  const std::vector<float> minus_one(5000, -1);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 4; ++worker)
    threads.emplace_back([&, worker] {
      for (int i = 0; i < 200; ++i) {
        const int slice = (i + worker) % 4;
        const Snapshot now = updater->pull(slice, worker);
        updater->apply(slice, {.worker = worker, .version = now.version, .gradient = minus_one.data()});
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int slice = 0; slice < 4; ++slice) {
    EXPECT_EQ(updater->version(slice), 200u);
    EXPECT_EQ(weights<float>(*updater, slice)[4999], 200);
  }
}

TEST(Updater, TheTeamSharesLargeSlicesWithTheSameBits) {
  constexpr std::int64_t kCount = 100'003;
  std::vector<float> initial(kCount), gradient(kCount);
  std::mt19937 draws(1);
  for (float& x : initial) x = std::normal_distribution<float>()(draws);
  for (float& x : gradient) x = std::normal_distribution<float>()(draws);
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    const TeamScope team(threads);
    const auto updater = make_updater();
    updater->set_rules(Spec::parse("momentum:lr=0.1,momentum=0.9,weight_decay=0.01"), "gap_aware", {});
    updater->set_workers(1);
    const int slice = updater->add_slice({.name = "w", .end = kCount, .dtype = DType::kFloat32}, initial.data());
    for (std::uint64_t version = 0; version < 3; ++version) {
      updater->pull(slice, 0);
      const Contribution one{.worker = 0, .version = version, .examples = 1, .gradient = gradient.data()};
      std::vector<float> copy(kCount);
      updater->apply(slice, one, copy.data());
      EXPECT_EQ(copy, weights<float>(*updater, slice));
    }
    const Contribution both[] = {{.worker = 0, .version = 3, .examples = 1, .gradient = gradient.data()},
                                 {.worker = 1, .version = 3, .examples = 2, .gradient = initial.data()}};
    updater->apply_round(slice, {both[0], both[1]}, {});
    std::vector<float> read(kCount);
    updater->read(slice, -1, read.data());
    EXPECT_EQ(read, weights<float>(*updater, slice));
    if (first.empty()) first = read;
    EXPECT_EQ(read, first) << threads << " threads";
  }
}

// Where only the optimizer has a part in it, gradient and weights are read where they lie; a clip that is never reached
// has the rules go over copies.
TEST(Updater, ReadsInPlaceWithTheBitsOfCopies) {
  constexpr std::int64_t kCount = 3001;
  std::mt19937 draws(1);
  std::vector<float> initial(kCount), gradient(kCount);
  for (float& x : initial) x = std::normal_distribution<float>()(draws);
  for (float& x : gradient) x = std::normal_distribution<float>()(draws);
  for (const std::string optimizer :
       {"sgd:lr=0.1", "momentum:lr=0.1", "nesterov:lr=0.1", "adam:lr=0.1", "adamw:lr=0.1", "assign:lr=0.1"}) {
    std::vector<std::vector<float>> results;
    for (const std::string clip : {"", ",clip_gradient=1e30"}) {
      for (const bool pulled : {false, true}) {
        const auto updater = make_updater();
        updater->set_rules(Spec::parse(optimizer + clip), "none", {});
        const int slice = updater->add_slice({.name = "w", .end = kCount, .dtype = DType::kFloat32}, initial.data());
        const std::vector<float> pushed = gradient;
        for (std::uint64_t push = 0; push < 3; ++push) {
          const Snapshot held = pulled ? updater->pull(slice, -1) : Snapshot();
          const std::vector<float> before = weights<float>(*updater, slice);
          // Of version 0: the later ones are stale.
          updater->apply(slice, {.worker = 0, .version = 0, .examples = 1, .gradient = gradient.data()});
          if (pulled) {
            EXPECT_EQ(std::memcmp(held.data.get(), before.data(), held.bytes), 0) << optimizer;
          }
        }
        updater->apply_round(slice, {{.worker = 0, .version = 3, .examples = 1, .gradient = gradient.data()}}, {});
        EXPECT_EQ(gradient, pushed) << optimizer;
        results.push_back(weights<float>(*updater, slice));
      }
    }
    EXPECT_NE(results.front(), initial) << optimizer;
    for (const auto& result : results) EXPECT_EQ(result, results.front()) << optimizer;
  }
}

struct Throwing final : Staleness {
  void correct(const Tile<float>&, const StaleContext&) const override { throw InvalidArgument("not this one"); }
  void correct(const Tile<double>&, const StaleContext&) const override { throw InvalidArgument("not this one"); }
};

TEST(Updater, APolicyThatThrowsIsHeardFromAnyThreadOfTheTeam) {
  const TeamScope team(2);
  const auto updater = make_updater();
  updater->set_rules(Spec::parse("sgd:lr=0.1"), "throwing", {},
                     {.policies = {{"throwing", std::make_shared<Throwing>()}}});
  const std::vector<float> values(100'003);
  const auto count = static_cast<std::int64_t>(values.size());
  const int slice = updater->add_slice({.name = "w", .end = count, .dtype = DType::kFloat32}, values.data());
  EXPECT_THROW(updater->apply(slice, {.worker = 0, .examples = 1, .gradient = values.data()}), InvalidArgument);
}

TEST(Histogram, KnowsItsQuantiles) {
  Histogram histogram;
  for (int i = 1; i <= 100; ++i) histogram.add(i);
  EXPECT_EQ(histogram.quantile(0.5), 50);
  EXPECT_EQ(histogram.quantile(0.99), 99);
  EXPECT_DOUBLE_EQ(histogram.mean(), 50.5);
  EXPECT_EQ(Histogram().quantile(0.5), 0);
}

}  // namespace
}  // namespace paceline
