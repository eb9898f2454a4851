#include "epoch_order.h"

#include <gmock/gmock.h>
#include <paceline/error.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "fixtures.h"

namespace paceline::test {
namespace {

using io::Batches;
using io::EpochOrder;
using io::Order;
using io::OrderOptions;
using io::Permutation;
using io::Share;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::int64_t> all_of(Batches batches) {
  std::vector<std::int64_t> positions, batch;
  while (batches.next(batch)) positions.insert(positions.end(), batch.begin(), batch.end());
  return positions;
}

RangeSet as_set(const std::vector<std::int64_t>& positions) {
  RangeSet set;
  for (const std::int64_t p : positions) set.add({p, p + 1});
  return set;
}

RangeSet whole(std::int64_t size) {
  RangeSet set;
  set.add({0, size});
  return set;
}

// A way to order and to deal.
struct Kind {
  const char* name;
  OrderOptions options;
  enum Draws { kOnce, kWeights, kGroups, kMixture } draws = kOnce;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

// The order of a kind over shards of random sizes, at least five of them, with random weights, keys or sets.
Order order_of(const Kind& kind, const std::vector<std::int64_t>& starts, std::mt19937_64& random) {
  OrderOptions options = kind.options;
  if (options.seed) options.seed = random();
  std::mt19937_64 draws(starts.back());  // those of a seed are the same in every test
  for (std::int64_t i = 0; i < starts.back(); ++i) {
    if (kind.draws == Kind::kWeights) options.sampling.weights.push_back(static_cast<double>(1 + draws() % 5));
    if (kind.draws == Kind::kGroups) options.sampling.groups.push_back(static_cast<std::int64_t>(draws() % 5) - 2);
  }
  if (kind.draws == Kind::kMixture) options.mixture = {{0, 1.0}, {2, 2.0}, {3, 0.5}};
  return Order(starts, options, "x");
}

std::vector<std::int64_t> random_starts(std::mt19937_64& random, std::size_t least) {
  std::vector<std::int64_t> starts = {0};
  for (std::size_t n = least + random() % 6; n > 0; --n)
    starts.push_back(starts.back() + 2 + static_cast<std::int64_t>(random() % 70));
  return starts;
}

const Kind kKinds[] = {
    {"Unshuffled", {.batch = 7}},
    {"UnshuffledSteps", {.batch = 7, .global_batch = 10}},
    {"ShardByShard", {.batch = 7, .seed = 1, .window = 1}},
    {"Windows", {.batch = 7, .seed = 1, .window = 3}},
    {"Uniform", {.batch = 7, .seed = 1}},
    {"Records", {.batch = 7, .seed = 1, .partition = Partition::kRecords, .window = 2}},
    {"GlobalBatch", {.batch = 7, .seed = 1, .window = 2, .global_batch = 24}},
    {"Nodes", {.batch = 7, .seed = 1, .window = 2, .virtual_nodes = 3}},
    {"NodesInSteps", {.batch = 7, .seed = 1, .window = 2, .virtual_nodes = 4, .global_batch = 24}},
    {"Weights", {.batch = 7, .seed = 1}, Kind::kWeights},
    {"WeightsInSteps", {.batch = 7, .seed = 1, .global_batch = 24}, Kind::kWeights},
    {"Groups", {.batch = 7, .seed = 1}, Kind::kGroups},
    {"GroupsUnshuffled", {.batch = 7}, Kind::kGroups},
    {"GroupsInSteps", {.batch = 7, .seed = 1, .global_batch = 16}, Kind::kGroups},
    {"Mixture", {.batch = 7, .seed = 1, .window = 2}, Kind::kMixture},
    {"MixtureInSteps", {.batch = 7, .seed = 1, .window = 2, .global_batch = 24}, Kind::kMixture},
};

class OrderKind : public testing::TestWithParam<Kind> {
 protected:
  bool by_steps() const {
    return GetParam().options.global_batch > 0 || GetParam().options.partition == Partition::kRecords;
  }
  bool once() const { return GetParam().draws == Kind::kOnce || GetParam().draws == Kind::kGroups; }
};

TEST_P(OrderKind, PartsDeliverEveryPositionOnceAndNearlyAlike) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::int64_t> starts = random_starts(random, 5);
    const Order order = order_of(GetParam(), starts, random);
    const EpochOrder epoch = order.epoch(3);
    const int count = 1 + static_cast<int>(random() % 9);
    std::vector<Share> shares;
    try {
      for (int index = 0; index < count; ++index) shares.push_back(epoch.share({index, count}));
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("start fewer workers"));
      continue;
    }
    RangeSet all;
    std::int64_t total = 0, fewest = epoch.size(), most = 0;
    for (const Share& share : shares) {
      const std::vector<std::int64_t> positions = all_of(Batches(share.positions, share.batch, share.boundary));
      EXPECT_EQ(as_set(positions), share.positions);
      EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
      fewest = std::min(fewest, share.positions.count());
      most = std::max(most, share.positions.count());
      total += share.positions.count();
      for (const Range& range : share.positions.ranges()) all.add(range);
    }
    ASSERT_EQ(total, epoch.size());
    ASSERT_EQ(all, whole(epoch.size()));
    ASSERT_GE(fewest, 1);
    // Whole nodes, batches of one key and steps that the parts do not divide make some parts larger.
    const bool alike = !by_steps() && GetParam().options.virtual_nodes == 0 && GetParam().draws != Kind::kGroups;
    if (alike) {
      ASSERT_LE(most - fewest, 1);
    }
  }
}

TEST_P(OrderKind, EveryRecordComesOnceUnlessItIsDrawn) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 50; ++round) {
    const std::vector<std::int64_t> starts = random_starts(random, 5);
    const Order order = order_of(GetParam(), starts, random);
    const EpochOrder epoch = order.epoch(static_cast<std::int64_t>(random() % 1000));
    std::set<std::int64_t> records;
    for (std::int64_t position = 0; position < epoch.size(); ++position) records.insert(epoch.record(position));
    ASSERT_GE(*records.begin(), 0);
    ASSERT_LT(*records.rbegin(), starts.back());
    if (once()) {
      ASSERT_EQ(records.size(), static_cast<std::size_t>(starts.back()));
    }
  }
}

TEST_P(OrderKind, DependsOnSeedAndEpochOnly) {
  const std::vector<std::int64_t> starts = {0, 40, 90, 100, 160, 200};
  std::mt19937_64 one(7), again(7), two(8);
  const Order order = order_of(GetParam(), starts, one), same = order_of(GetParam(), starts, again),
              other = order_of(GetParam(), starts, two);
  EXPECT_EQ(order.text(), same.text());
  const EpochOrder a = order.epoch(2), b = same.epoch(2), next = order.epoch(3), others = other.epoch(2);
  int next_differs = 0, other_differs = 0;
  for (std::int64_t p = 0; p < a.size(); ++p) {
    EXPECT_EQ(a.record(p), b.record(p));
    next_differs += a.record(p) != next.record(p);
    other_differs += a.record(p) != others.record(p);
  }
  if (GetParam().options.seed) {
    EXPECT_NE(order.text(), other.text());
    EXPECT_GT(next_differs, 150);
    EXPECT_GT(other_differs, 150);
  } else {
    EXPECT_EQ(next_differs + other_differs, 0);
  }
}

TEST_P(OrderKind, NamesTheShardsThatItsPositionsNeed) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 50; ++round) {
    const std::vector<std::int64_t> starts = random_starts(random, 5);
    const Order order = order_of(GetParam(), starts, random);
    const EpochOrder epoch = order.epoch(1);
    const std::int64_t begin = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(epoch.size()));
    RangeSet positions;
    positions.add({begin, std::min(epoch.size(), begin + 40)});
    const std::vector<std::size_t> named = epoch.shards(positions);
    EXPECT_EQ(std::set<std::size_t>(named.begin(), named.end()).size(), named.size());
    for (const Range& range : positions.ranges())
      for (std::int64_t p = range.begin; p < range.end; ++p)
        EXPECT_THAT(named, testing::Contains(io::range_of(starts, epoch.record(p))));
  }
}

// Workers deliver, commit, die and come back in another number; a job ends and resumes. A plain list of positions says
// what is done.
TEST_P(OrderKind, SurvivesRandomProgramsOfWorkers) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 60; ++round) {
    const std::vector<std::int64_t> starts = random_starts(random, 5);
    const Order order = order_of(GetParam(), starts, random);
    const EpochOrder reference = order.epoch(round);
    std::vector<int> delivered(static_cast<std::size_t>(order.size())), committed(delivered.size());
    RangeSet done;
    while (done.count() < order.size()) {
      const EpochOrder epoch = order.epoch(round);
      const int counts[] = {1, 2, 3, 8};
      int count = counts[random() % 4];
      std::vector<Batches> workers;
      try {
        for (int index = 0; index < count; ++index) {
          const Share share = epoch.share({index, count});
          workers.emplace_back(share.without(done), share.batch, share.boundary);
        }
      } catch (const InvalidArgument&) {  // too many for so few records
        continue;
      }
      RangeSet left = epoch.all_but(done);  // what nobody has committed
      const std::size_t steps = random() % 40;
      for (std::size_t step = 0; step < steps && !workers.empty(); ++step) {
        const std::size_t which = random() % workers.size();
        std::vector<std::int64_t> batch;
        const bool more = workers[which].next(batch);
        for (const std::int64_t p : batch) {
          EXPECT_EQ(epoch.record(p), reference.record(p));
          ++delivered[static_cast<std::size_t>(p)];
        }
        if (more && random() % 8 > 0) {
          for (const Range& range : io::to_ranges(batch)) {
            done.add(range);
            left.subtract(range);
          }
          for (const std::int64_t p : batch) ++committed[static_cast<std::size_t>(p)];
        } else {  // it dies before its batch counts, or has no more
          workers.erase(workers.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
      if (!workers.empty() || random() % 2) continue;  // the job ends here
      Batches rest = epoch.taken_over(left);
      std::vector<std::int64_t> batch;
      while (rest.next(batch)) {
        for (const std::int64_t p : batch) ++committed[static_cast<std::size_t>(p)];
        for (const Range& range : io::to_ranges(batch)) done.add(range);
      }
    }
    EXPECT_THAT(committed, testing::Each(1));
    EXPECT_EQ(done, whole(order.size()));
  }
}

class SteppedKind : public OrderKind {};

TEST_P(SteppedKind, GlobalBatchesAreTheSameForEveryNumberOfParts) {
  const std::int64_t global = GetParam().options.global_batch;
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 30; ++round) {
    const Order order = order_of(GetParam(), random_starts(random, 5), random);
    const EpochOrder epoch = order.epoch(round);
    for (const int count : {1, 2, 3, 8}) {
      std::vector<RangeSet> steps(static_cast<std::size_t>((epoch.size() + global - 1) / global));
      for (int index = 0; index < count; ++index) {
        const Share share = epoch.share({index, count});
        Batches batches(share.positions, share.batch, share.boundary);
        std::vector<std::int64_t> batch;
        for (std::size_t step = 0; batches.next(batch); ++step)
          for (const Range& range : io::to_ranges(batch)) steps.at(step).add(range);
      }
      // All but a last step shorter than the workers, which some do not have.
      for (std::size_t step = 0; step < steps.size(); ++step) {
        const auto begin = static_cast<std::int64_t>(step) * global;
        RangeSet expected;
        expected.add({begin, std::min(epoch.size(), begin + global)});
        EXPECT_EQ(steps[step], expected) << "step " << step << " of " << count << " workers";
      }
    }
  }
}

std::vector<Kind> kinds(bool stepped) {
  std::vector<Kind> result;
  for (const Kind& kind : kKinds)
    if (!stepped || kind.options.global_batch > 0) result.push_back(kind);
  return result;
}

INSTANTIATE_TEST_SUITE_P(All, OrderKind, testing::ValuesIn(kinds(false)),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(All, SteppedKind, testing::ValuesIn(kinds(true)),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(EpochOrder, NeedsARecordForEachWorker) {
  for (const Partition partition : {Partition::kShards, Partition::kRecords}) {
    const Order order({0, 3}, {.seed = 1, .partition = partition}, "train.manifest");
    const EpochOrder epoch = order.epoch(0);
    EXPECT_THAT(error_of<InvalidArgument>([&] {
                  epoch.share({0, 4});
                }),
                HasSubstr("4 workers share the 3 records of train.manifest"));
    EXPECT_THAT(error_of<InvalidArgument>([&] { epoch.share({4, 4}); }), HasSubstr("no part 4 of 4"));
  }
  const Order nodes({0, 1, 2, 9}, {.seed = 1, .virtual_nodes = 3}, "x");
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                nodes.epoch(0).share({0, 6});
              }),
              HasSubstr("there would be none for some"));
}

TEST(EpochOrder, RefusesOptionsThatDoNotGoTogether) {
  const auto message = [](OrderOptions options) {
    return error_of<InvalidArgument>([&] { Order({0, 2, 4}, options, "train.manifest"); });
  };
  const Sampling weights{.weights = {1, 1, 1, 1}}, groups{.groups = {1, 1, 2, 2}};
  EXPECT_THAT(message({.batch = 0}), HasSubstr("batch size is at least 1, not 0"));
  EXPECT_THAT(message({.window = -1}), HasSubstr("a number of shards, or 0 for all, not -1"));
  EXPECT_THAT(message({.global_batch = -4}), HasSubstr("global batch is at least 1"));
  EXPECT_THAT(message({.virtual_nodes = 3}),
              HasSubstr("2 shards of train.manifest cannot be dealt to 3 virtual nodes"));
  EXPECT_THAT(message({.virtual_nodes = 2, .global_batch = 3}), HasSubstr("cannot be shared alike by 2"));
  EXPECT_THAT(message({.partition = Partition::kRecords, .virtual_nodes = 2}), HasSubstr("need a global_batch"));
  EXPECT_THAT(message({.partition = Partition::kRecords, .sampling = groups}), HasSubstr("need a global_batch"));
  EXPECT_THAT(message({.sampling = weights}), HasSubstr("need the seed `shuffle`"));
  EXPECT_THAT(message({.seed = 1, .virtual_nodes = 2, .sampling = weights}), HasSubstr("leave virtual_nodes out"));
  EXPECT_THAT(message({.seed = 1, .sampling = {.weights = {1, 2}}}),
              HasSubstr("there are 2 weights for the 4 records of train.manifest"));
  EXPECT_THAT(message({.seed = 1, .sampling = {.weights = {1, -2, 3, 4}}}), HasSubstr("weight of record 1 is -2"));
  EXPECT_THAT(message({.seed = 1, .sampling = {.weights = {0, 0, 0, 0}}}), HasSubstr("add up to 0"));
  EXPECT_THAT(message({.seed = 1, .sampling = {.epoch_size = 9}}), HasSubstr("leave it out"));
  EXPECT_THAT(message({.seed = 1, .sampling = {.weights = {1, 1, 1, 1}, .groups = {1, 1, 1, 1}}}),
              HasSubstr("exclude each other"));
  EXPECT_THAT(message({.seed = 1, .mixture = {{0, 1.0}, {1, 0.0}}}), HasSubstr("has the weight 0"));
  EXPECT_THAT(message({.seed = 1, .mixture = {{0, 1.0}, {1, 1e-9}}}), HasSubstr("no place for data set 1"));
  EXPECT_THAT(message({.mixture = {{0, 1.0}, {1, 1.0}}}), HasSubstr("need the seed"));
}

TEST(EpochOrder, RefusesPositionsOfALargerDataSet) {
  const Order order({0, 100}, {.seed = 1}, "train.manifest");
  EXPECT_THAT(error_of<InvalidArgument>([&] { order.epoch(0).all_but(whole(101)); }),
              HasSubstr("positions up to 101 cannot be done in an epoch of train.manifest, which has 100"));
}

TEST(EpochOrder, AHugeBatchTakesAllInOneStep) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const Order order({0, 10}, {.batch = kHuge, .seed = 1, .partition = Partition::kRecords}, "x");
  const EpochOrder epoch = order.epoch(0);
  EXPECT_EQ(epoch.share({0, 3}).positions.text(), "0-3");
  EXPECT_EQ(epoch.share({1, 3}).positions.text(), "3-6");
  EXPECT_EQ(epoch.share({2, 3}).positions.text(), "6-10");
  const Order shards({0, 10}, {.batch = kHuge, .seed = 1}, "x");
  for (const Order* one : {&order, &shards}) {
    const Share share = one->epoch(0).share({0, 1});
    Batches batches(share.positions, share.batch, share.boundary);
    std::vector<std::int64_t> batch;
    ASSERT_TRUE(batches.next(batch));
    EXPECT_EQ(batch.size(), 10u);
  }
}

TEST(EpochOrder, AResumedPartKeepsStepWithTheOthers) {
  const Order order({0, 100}, {.batch = 10, .seed = 1, .partition = Partition::kRecords}, "x");
  const Share share = order.epoch(0).share({1, 2});
  RangeSet done;
  done.add({0, 35});  // all of the first step, half of this part's second
  Batches batches(share.without(done), share.batch, share.boundary);
  std::vector<std::int64_t> batch;
  ASSERT_TRUE(batches.next(batch));
  EXPECT_THAT(io::to_ranges(batch), ElementsAre(Range{35, 40}));
  ASSERT_TRUE(batches.next(batch));
  EXPECT_THAT(io::to_ranges(batch), ElementsAre(Range{50, 60}));
}

// 12 shards of 10 records, in windows of 3: each holds all records of 3 shards.
TEST(EpochOrder, MixesWindowsOfWholeShards) {
  std::vector<std::int64_t> starts{0};
  while (starts.size() < 13) starts.push_back(starts.back() + 10);
  const Order order(starts, {.seed = 5, .window = 3}, "x");
  std::set<std::set<std::size_t>> windows;
  for (std::int64_t number = 0; number < 4; ++number) {
    const EpochOrder epoch = order.epoch(number);
    EXPECT_EQ(epoch.spread(), 6u);
    for (std::int64_t begin = 0; begin < 120; begin += 30) {
      std::map<std::size_t, int> counts;
      for (std::int64_t p = begin; p < begin + 30; ++p) ++counts[static_cast<std::size_t>(epoch.record(p) / 10)];
      EXPECT_EQ(counts.size(), 3u);
      std::set<std::size_t> window;
      for (const auto& [shard, count] : counts) {
        EXPECT_EQ(count, 10);
        window.insert(shard);
      }
      windows.insert(window);
    }
  }
  EXPECT_GT(windows.size(), 10u);  // other shards meet in each epoch
}

// The nodes of a part hold its shards in every epoch, whole, for any number of parts that divides theirs.
TEST(EpochOrder, AVirtualNodeKeepsItsShards) {
  std::vector<std::int64_t> starts{0};
  std::mt19937_64 random(test_seed());
  while (starts.size() < 25) starts.push_back(starts.back() + 40 + static_cast<std::int64_t>(random() % 2));
  const Order rows(starts, {.batch = 8, .seed = 1, .window = 2, .virtual_nodes = 4}, "x");
  const Order steps(starts, {.seed = 1, .window = 2, .virtual_nodes = 4, .global_batch = 48}, "x");
  for (const int count : {1, 2, 4}) {
    for (int index = 0; index < count; ++index) {
      std::set<std::size_t> expected;
      for (std::size_t shard = 24 / static_cast<std::size_t>(count) * static_cast<std::size_t>(index);
           expected.size() < 24 / static_cast<std::size_t>(count); ++shard)
        expected.insert(shard);
      for (std::int64_t number = 0; number < 5; ++number) {
        const EpochOrder epoch = rows.epoch(number);
        const std::vector<std::size_t> shards = epoch.shards(epoch.share({index, count}).positions);
        EXPECT_EQ(std::set<std::size_t>(shards.begin(), shards.end()), expected);
        // In steps all but the rests, which are shorter than a step.
        const EpochOrder stepped = steps.epoch(number);
        RangeSet positions = stepped.share({index, count}).positions;
        positions.subtract({stepped.size() / 48 * 48 - 48, stepped.size()});
        for (const std::size_t shard : stepped.shards(positions)) EXPECT_THAT(expected, testing::Contains(shard));
      }
    }
  }
}

TEST(EpochOrder, MovesRecordsBetweenWorkers) {
  std::vector<std::int64_t> starts{0};
  while (starts.size() < 65) starts.push_back(starts.back() + 10);
  const Order order(starts, {.seed = 3, .window = 4}, "x");
  std::vector<std::set<int>> workers(640);
  for (std::int64_t number = 0; number < 12; ++number) {
    const EpochOrder epoch = order.epoch(number);
    for (std::int64_t p = 0; p < 640; ++p)
      workers[static_cast<std::size_t>(epoch.record(p))].insert(static_cast<int>(p / 160));
  }
  const auto everywhere = std::ranges::count_if(workers, [](const auto& seen) { return seen.size() == 4; });
  EXPECT_GT(everywhere, 640 * 3 / 4);  // 88 % are expected after 12 epochs
}

// Checkpoints of earlier versions, which do not say what the order was, go on with it.
TEST(EpochOrder, TheUniformShuffleIsThatOfEarlierVersions) {
  const Order order({0, 40, 90, 100}, {.seed = 7}, "x");
  const EpochOrder epoch = order.epoch(3);
  const Permutation earlier(100, io::mix(7, 3));
  for (std::int64_t p = 0; p < 100; ++p) EXPECT_EQ(epoch.record(p), earlier(p));
}

// The table in docs/reference.md: 256 shards of 500 records.
TEST(EpochOrder, MixesAsItsPageSays) {
  struct Row {
    int window;
    double neighbours, distance, shards;
  };
  std::vector<std::int64_t> starts{0};
  while (starts.size() < 257) starts.push_back(starts.back() + 500);
  const std::int64_t size = starts.back();
  for (const Row& row :
       {Row{1, 1, 0.0013, 1.5}, Row{4, 0.25, 0.0052, 4.5}, Row{16, 0.062, 0.021, 16.5}, Row{0, 0.0039, 0.333, 162}}) {
    const Order order(starts, {.seed = 11, .window = row.window}, "x");
    const EpochOrder epoch = order.epoch(0);
    std::vector<std::int64_t> place(static_cast<std::size_t>(size));
    for (std::int64_t p = 0; p < size; ++p) place[static_cast<std::size_t>(epoch.record(p))] = p;
    double same = 0, distance = 0, shards = 0;
    std::int64_t pairs = 0;
    for (std::int64_t p = 0; p + 1 < size; ++p) {
      same += epoch.record(p) / 500 == epoch.record(p + 1) / 500;
      if (p % 500 == 499) continue;
      const auto i = static_cast<std::size_t>(p);
      distance += static_cast<double>(std::abs(place[i] - place[i + 1]));
      ++pairs;
    }
    for (std::int64_t begin = 0; begin < size; begin += 256) {
      std::set<std::int64_t> seen;
      for (std::int64_t p = begin; p < begin + 256; ++p) seen.insert(epoch.record(p) / 500);
      shards += static_cast<double>(seen.size());
    }
    same /= static_cast<double>(size - 1);
    distance /= static_cast<double>(pairs) * static_cast<double>(size);
    shards /= static_cast<double>(size / 256);
    std::printf("window %d: %.4f neighbours of one shard, %.4f apart, %.1f shards in a batch\n", row.window, same,
                distance, shards);
    EXPECT_NEAR(same, row.neighbours, 0.15 * row.neighbours);
    EXPECT_NEAR(distance, row.distance, 0.05 * row.distance);
    EXPECT_NEAR(shards, row.shards, 0.05 * row.shards);
  }
}

}  // namespace
}  // namespace paceline::test
