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
using io::Permutation;
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

// Shards of random sizes.
std::vector<std::int64_t> random_starts(std::mt19937_64& random) {
  std::vector<std::int64_t> starts = {0};
  for (std::size_t n = 1 + random() % 6; n > 0; --n) {
    starts.push_back(starts.back() + 1 + static_cast<std::int64_t>(random() % 70));
  }
  return starts;
}

TEST(RangeSet, MatchesASetOfNumbers) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 200; ++round) {
    RangeSet ranges;
    std::set<std::int64_t> numbers;
    for (int i = 0; i < 40; ++i) {
      const std::int64_t begin = static_cast<std::int64_t>(random() % 60);
      const std::int64_t end = begin + static_cast<std::int64_t>(random() % 12);
      if (random() % 3) {
        ranges.add({begin, end});
        for (std::int64_t n = begin; n < end; ++n) numbers.insert(n);
      } else {
        ranges.subtract({begin, end});
        for (std::int64_t n = begin; n < end; ++n) numbers.erase(n);
      }
      ASSERT_EQ(ranges.count(), static_cast<std::int64_t>(numbers.size()));
      for (std::int64_t n = 0; n < 75; ++n) ASSERT_EQ(ranges.contains(n), numbers.count(n) > 0);
      for (std::size_t r = 1; r < ranges.ranges().size(); ++r) {
        ASSERT_LT(ranges.ranges()[r - 1].end, ranges.ranges()[r].begin);
      }
      ASSERT_EQ(RangeSet::parse(ranges.text()), ranges);
    }
  }
}

TEST(RangeSet, HasAText) {
  RangeSet ranges;
  ranges.add({128, 192});
  ranges.add({0, 64});
  EXPECT_EQ(ranges.text(), "0-64,128-192");
  EXPECT_TRUE(RangeSet::parse("").empty());
  for (const char* text :
       {"x", "1", "1-", "5-3", "3-3", "1-2,", "1-2,2-3", "5-6,1-2", "-1-2", "1-2;3-4", "1-99999999999999999999"}) {
    EXPECT_THAT(error_of<Corrupt>([&] { RangeSet::parse(text); }), HasSubstr("no list of ranges")) << text;
  }
}

TEST(Permutation, IsOneForEverySize) {
  for (std::int64_t size = 1; size < 400; ++size) {
    const Permutation permutation(size, static_cast<std::uint64_t>(size) * 7);
    std::set<std::int64_t> images;
    for (std::int64_t i = 0; i < size; ++i) images.insert(permutation(i));
    ASSERT_EQ(images.size(), static_cast<std::size_t>(size));
    ASSERT_EQ(*images.begin(), 0);
    ASSERT_EQ(*images.rbegin(), size - 1);
  }
  const std::int64_t large = (std::int64_t{1} << 40) + 12345;
  EXPECT_LT(Permutation(large, 1)(large - 1), large);
}

TEST(Permutation, SpreadsNeighboursAndDependsOnTheSeed) {
  const std::int64_t size = 10000;
  const Permutation a(size, 1), b(size, 2);
  std::int64_t fixed = 0, equal = 0, low = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    fixed += a(i) == i;
    equal += a(i) == b(i);
    low += i < size / 2 && a(i) < size / 2;
  }
  EXPECT_LT(fixed, 12);  // 1 is expected
  EXPECT_LT(equal, 12);
  EXPECT_NEAR(static_cast<double>(low), 2500, 150);  // 6 standard deviations
}

class OrderPartition : public testing::TestWithParam<Partition> {};

TEST_P(OrderPartition, PartsAreDisjointCompleteAndBalanced) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::int64_t> starts = random_starts(random);
    const std::int64_t batch = 1 + static_cast<std::int64_t>(random() % 20);
    const EpochOrder order(starts, GetParam(), random(), 3);
    const int count =
        static_cast<int>(1 + random() % static_cast<std::uint64_t>(std::min<std::int64_t>(starts.back(), 9)));
    std::int64_t total = 0, fewest = order.size(), most = 0;
    std::set<std::int64_t> records;
    for (int index = 0; index < count; ++index) {
      const RangeSet part = order.part({index, count}, batch, "x");
      fewest = std::min(fewest, part.count());
      most = std::max(most, part.count());
      total += part.count();
      for (const std::int64_t p : all_of(order.batches(part, {}, batch, GetParam() == Partition::kRecords))) {
        EXPECT_TRUE(part.contains(p));
        records.insert(order.record(p));
      }
    }
    ASSERT_EQ(total, order.size());
    ASSERT_EQ(records.size(), static_cast<std::size_t>(order.size()));
    ASSERT_GE(fewest, 1);
    ASSERT_LE(most - fewest, 1);
  }
}

TEST_P(OrderPartition, ResumesAnywhereWithTheRestInTheSameOrder) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 300; ++round) {
    const EpochOrder order(random_starts(random), GetParam(), random(), 5);
    const std::int64_t batch = 1 + static_cast<std::int64_t>(random() % 20);
    const int count = order.size() >= 2 ? 2 : 1;
    const bool aligned = GetParam() == Partition::kRecords;
    const RangeSet part = order.part({count - 1, count}, batch, "x");
    const std::vector<std::int64_t> full = all_of(order.batches(part, {}, 1, false));
    const std::size_t at = random() % (full.size() + 1);
    const RangeSet done = as_set({full.begin(), full.begin() + static_cast<std::ptrdiff_t>(at)});
    const std::vector<std::int64_t> rest(full.begin() + static_cast<std::ptrdiff_t>(at), full.end());
    EXPECT_EQ(all_of(order.batches(part, done, 1, false)), rest);
    EXPECT_EQ(as_set(all_of(order.batches(part, done, batch, aligned))), as_set(rest));
  }
}

TEST_P(OrderPartition, APositionNamesTheSameRecordInEveryEpochOrderOfTheSeed) {
  const std::vector<std::int64_t> starts = {0, 40, 90, 100};
  const EpochOrder a(starts, GetParam(), 7, 0), same(starts, GetParam(), 7, 0), next(starts, GetParam(), 7, 1),
      other(starts, GetParam(), 8, 0), plain(starts, GetParam(), std::nullopt, 4);
  int next_differs = 0, other_differs = 0;
  for (std::int64_t p = 0; p < 100; ++p) {
    EXPECT_EQ(a.record(p), same.record(p));
    EXPECT_EQ(plain.record(p), p);
    next_differs += a.record(p) != next.record(p);
    other_differs += a.record(p) != other.record(p);
  }
  EXPECT_GT(next_differs, 80);
  EXPECT_GT(other_differs, 80);
  EXPECT_EQ(all_of(plain.batches(whole(100), {}, 7, false)).size(), 100u);
}

TEST_P(OrderPartition, NeedsARecordForEachWorker) {
  const EpochOrder order({0, 3}, GetParam(), 1, 0);
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                order.part({0, 4}, 1, "train.manifest");
              }),
              HasSubstr("4 workers share the 3 records of train.manifest"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { order.part({4, 4}, 1, "x"); }), HasSubstr("no part 4 of 4"));
}

INSTANTIATE_TEST_SUITE_P(Both, OrderPartition, testing::Values(Partition::kShards, Partition::kRecords),
                         [](const auto& info) { return info.param == Partition::kShards ? "Shards" : "Records"; });

TEST(EpochOrder, StepsOfAllPartsTogetherAreTheSameForEveryNumberOfParts) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 100; ++round) {
    const std::int64_t size = 4 + static_cast<std::int64_t>(random() % 300);
    const std::int64_t global = 4 * (1 + static_cast<std::int64_t>(random() % 10));
    const EpochOrder order({0, size}, Partition::kRecords, random(), 0);
    std::map<int, std::vector<RangeSet>> steps;
    for (const int count : {1, 2, 4}) {
      for (int index = 0; index < count; ++index) {
        Batches batches = order.batches(order.part({index, count}, global / count, "x"), {}, global / count, true);
        std::vector<std::int64_t> batch;
        for (std::size_t step = 0; batches.next(batch); ++step) {
          if (steps[count].size() <= step) steps[count].resize(step + 1);
          for (const std::int64_t p : batch) steps[count][step].add({p, p + 1});
        }
      }
    }
    EXPECT_EQ(steps[1], steps[2]);
    EXPECT_EQ(steps[1], steps[4]);
  }
}

TEST(EpochOrder, AHugeBatchTakesAllInOneStep) {
  const EpochOrder order({0, 10}, Partition::kRecords, 1, 0);
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(order.part({0, 3}, kHuge, "x").text(), "0-3");
  EXPECT_EQ(order.part({1, 3}, kHuge, "x").text(), "3-6");
  EXPECT_EQ(order.part({2, 3}, kHuge, "x").text(), "6-10");
  EXPECT_EQ(all_of(order.batches(whole(10), {}, kHuge, true)).size(), 10u);
}

TEST(EpochOrder, AResumedPartKeepsStepWithTheOthers) {
  const EpochOrder order({0, 100}, Partition::kRecords, 1, 0);
  const RangeSet part = order.part({1, 2}, 10, "x");
  RangeSet done;
  done.add({0, 35});  // all of the first step, half of this part's second
  Batches batches = order.batches(part, done, 10, true);
  std::vector<std::int64_t> batch;
  ASSERT_TRUE(batches.next(batch));
  EXPECT_THAT(io::to_ranges(batch), ElementsAre(Range{35, 40}));
  ASSERT_TRUE(batches.next(batch));
  EXPECT_THAT(io::to_ranges(batch), ElementsAre(Range{50, 60}));
}

TEST(EpochOrder, MixesTheShardsOfAPartInEveryBatch) {
  const EpochOrder order({0, 500, 1000}, Partition::kShards, 3, 0);
  Batches batches = order.batches(whole(1000), {}, 100, false);
  std::vector<std::int64_t> batch;
  RangeSet committed;
  while (batches.next(batch)) {
    const auto first = std::count_if(batch.begin(), batch.end(), [](std::int64_t p) { return p < 500; });
    EXPECT_GT(first, 15);
    EXPECT_LT(first, 85);
    for (const Range& range : io::to_ranges(batch)) committed.add(range);
    EXPECT_LE(committed.ranges().size(), 2u);  // what a checkpoint holds stays short
  }
}

}  // namespace
}  // namespace paceline::test
