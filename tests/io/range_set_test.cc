#include <gmock/gmock.h>
#include <paceline/data_iterator.h>
#include <paceline/error.h>

#include <set>

#include "fixtures.h"
#include "permutation.h"

namespace paceline::test {
namespace {

using io::Permutation;
using testing::HasSubstr;

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

}  // namespace
}  // namespace paceline::test
