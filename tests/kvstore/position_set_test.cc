#include "position_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace paceline {
namespace {

std::vector<bool> bits(const PositionSet& set, std::size_t size) {
  std::vector<bool> result(size);
  std::int64_t last_end = -1;
  for (const auto& [begin, end] : set.ranges()) {
    EXPECT_LT(last_end, begin) << "ranges that touch are one";
    EXPECT_LT(begin, end);
    last_end = end;
    for (std::int64_t i = begin; i < end; ++i) result[i] = true;
  }
  return result;
}

TEST(PositionSet, is_a_set_of_bits) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr std::int64_t kSize = 60;
  for (int program = 0; program < 300; ++program) {
    PositionSet set;
    std::vector<bool> expected(kSize);
    for (int step = 0; step < 30; ++step) {
      const std::int64_t begin = random() % kSize, end = random() % (kSize + 1);
      switch (random() % 4) {
        case 0:
        case 1:
          set.add(begin, end);
          for (std::int64_t i = begin; i < end; ++i) expected[i] = true;
          break;
        case 2:
          set.subtract(begin, end);
          for (std::int64_t i = begin; i < end; ++i) expected[i] = false;
          break;
        case 3: {
          const std::int64_t count = random() % 10;
          const std::vector<bool> taken = bits(set.take(count), kSize);
          for (std::int64_t i = 0, left = count; i < kSize; ++i) {
            const bool first = expected[i] && left > 0;
            EXPECT_EQ(taken[i], first);
            if (first) expected[i] = false, --left;
          }
          break;
        }
        default: FAIL() << "not a remainder of 4";
      }
      ASSERT_EQ(bits(set, kSize), expected);
      ASSERT_EQ(set.count(), std::count(expected.begin(), expected.end(), true));
      ASSERT_EQ(set.empty(), set.count() == 0);
    }
  }
}

}  // namespace
}  // namespace paceline
