// Operators that overwrite their first input. Every operator's cases are run so too, in
// ../conformance/operators_test.cc.

#include <paceline/error.h>
#include <paceline/ops.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paceline {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using Values = std::vector<float>;

NDArray count(const Shape& shape) {
  Values values(static_cast<std::size_t>(shape.size()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return NDArray::from(values, shape);
}

TEST(InPlace, OverwritesAndKeepsTheOrderOfTasks) {
  const NDArray x = count({3});
  const std::uint64_t version = x.variable().version();
  x += x;
  x *= 3;
  x -= count({3});
  x /= 5;
  EXPECT_EQ(x.to_vector<float>(), (Values{0, 1, 2}));
  EXPECT_EQ(x.variable().version(), version + 4);
  relu_(negative_(x));
  EXPECT_EQ(x.to_vector<float>(), (Values{0, 0, 0}));
}

TEST(InPlace, ViewsAreWrittenWhereTheyLie) {
  const NDArray x = count({2, 3});
  x.narrow(1, 1, 2) += 10;
  square_(x.permute({1, 0}).at(0));
  EXPECT_EQ(x.to_vector<float>(), (Values{0, 11, 2, 9, 14, 5}));
}

TEST(InPlace, TheOtherInputBroadcasts) {
  const NDArray x = count({2, 3});
  x += count({3});
  x *= count({2, 1});
  EXPECT_EQ(x.to_vector<float>(), (Values{0, 0, 0, 3, 5, 7}));
  EXPECT_THAT(
      [&] { count({3}) += x; },
      ThrowsMessage<InvalidArgument>(HasSubstr("[add] gives float32 (2, 3), which cannot overwrite float32 (3,)")));
  EXPECT_THAT(
      [&] {
        count({3}).broadcast_to({2, 3}) += x;
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("it is a broadcast view")));
}

TEST(InPlace, MemoryThatIsSharedIsReadAsItWas) {
  const NDArray x = count({4});
  x.narrow(0, 1, 4) += x.narrow(0, 0, 3);
  EXPECT_EQ(x.to_vector<float>(), (Values{0, 1, 3, 5}));
  const NDArray square = count({2, 2});
  square += square.permute({1, 0});
  EXPECT_EQ(square.to_vector<float>(), (Values{0, 3, 3, 6}));
  const NDArray row = count({2, 2});
  row -= row.at(0);
  EXPECT_EQ(row.to_vector<float>(), (Values{0, 0, 2, 2}));
  const NDArray first = count({3});
  first += first.narrow(0, 2, 3);
  EXPECT_EQ(first.to_vector<float>(), (Values{2, 3, 4}));
}

TEST(InPlace, RefusesOtherTypesAndOperators) {
  const NDArray x = count({2});
  EXPECT_THROW(x += x.cast(DType::kFloat64), InvalidArgument);
  EXPECT_THAT(
      [&] {
        invoke_in_place(find_operator("less"), {x, x});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("[less] gives bool (2,), which cannot overwrite float32 (2,)")));
  EXPECT_THAT([&] { invoke_in_place(find_operator("sum"), {x}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("[sum] cannot work in place")));
  EXPECT_THROW(clip_(x, 1, 0), InvalidArgument);
}

}  // namespace
}  // namespace paceline
