#include <paceline/detail/loops.h>
#include <paceline/shape.h>

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace paceline {
namespace {

TEST(ShapeTest, KnowsItsSize) {
  EXPECT_EQ(Shape({2, 3, 4}).size(), 24);
  EXPECT_EQ(Shape().size(), 1);
  EXPECT_EQ(Shape({3, 0}).size(), 0);
  EXPECT_EQ(Shape({1 << 30, 1 << 30}).size(), std::int64_t{1} << 60);
  EXPECT_THROW(Shape({1 << 30, 1 << 30, 8}).size(), InvalidArgument);
  EXPECT_EQ(Shape({2, 3}).text(), "(2, 3)");
  EXPECT_EQ(Shape({2}).text(), "(2,)");
  EXPECT_EQ(Shape().text(), "()");
  EXPECT_NE(Shape({2, 3}), Shape({2, 3, 1}));
  EXPECT_THROW(Shape({1, 1, 1, 1, 1, 1, 1, 1, 1}), InvalidArgument);
  Shape full({1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_THROW(full.push_back(1), InvalidArgument);
}

TEST(ShapeTest, KnowsItsLastAxis) {
  EXPECT_EQ(Shape({2}).back(), 2);
  EXPECT_EQ(Shape({2, 3, 5}).back(), 5);
  Shape grown{4};
  grown.push_back(6);
  EXPECT_EQ(grown.back(), 6);
}

TEST(ShapeTest, Strides) {
  EXPECT_EQ(row_major({2, 3, 4}), Strides({12, 4, 1}));
  EXPECT_TRUE(is_dense({2, 3, 4}, {12, 4, 1}));
  EXPECT_TRUE(is_dense({2, 3, 4}, {1, 8, 2}));
  EXPECT_TRUE(is_dense({2, 1, 4}, {4, 99, 1}));
  EXPECT_FALSE(is_dense({2, 3}, {4, 1}));
  EXPECT_FALSE(is_dense({2, 3}, {0, 1}));
  EXPECT_TRUE(is_dense({2, 0}, {7, 7}));
  EXPECT_TRUE(is_dense({}, {}));
}

TEST(ShapeTest, Broadcasting) {
  EXPECT_EQ(broadcast({2, 1, 4}, {3, 1}), Shape({2, 3, 4}));
  EXPECT_EQ(broadcast({}, {3}), Shape({3}));
  EXPECT_EQ(broadcast({0}, {1}), Shape({0}));
  EXPECT_THROW(broadcast({2, 3}, {2}), InvalidArgument);
  EXPECT_EQ(broadcast_strides({3, 1}, {1, 1}, {2, 3, 4}), Strides({0, 1, 0}));
  EXPECT_THROW(broadcast_strides({2, 3}, {3, 1}, {3}), InvalidArgument);
  EXPECT_THROW(broadcast_strides({2}, {1}, {3}), InvalidArgument);
}

TEST(ShapeTest, Axes) {
  EXPECT_EQ(normalize_axis(-1, 3, "test"), 2);
  EXPECT_EQ(normalize_axis(0, 3, "test"), 0);
  EXPECT_THROW(normalize_axis(3, 3, "test"), InvalidArgument);
  EXPECT_THROW(normalize_axis(-4, 3, "test"), InvalidArgument);
  EXPECT_THROW(normalize_axis(0, 0, "test"), InvalidArgument);
}

TEST(LoopsTest, MergeWhatIsOneRun) {
  const std::array dense{row_major({2, 3, 4}), row_major({2, 3, 4})};
  const detail::Loops one = detail::make_loops({2, 3, 4}, dense);
  EXPECT_EQ(one.ndim, 1);
  EXPECT_EQ(one.sizes[0], 24);
  EXPECT_EQ(one.strides[1][0], 1);

  const std::array bias{row_major({2, 3, 4}), Strides({0, 0, 1})};
  const detail::Loops two = detail::make_loops({2, 3, 4}, bias);
  EXPECT_EQ(two.ndim, 2);
  EXPECT_EQ(two.sizes[0], 6);
  EXPECT_EQ(two.sizes[1], 4);
  EXPECT_EQ(two.strides[1][0], 0);

  const std::array permuted{Strides({1, 2}), Strides({3, 1})};
  const detail::Loops turned = detail::make_loops({2, 3}, permuted);
  EXPECT_EQ(turned.ndim, 2);
  EXPECT_EQ(turned.sizes[1], 2);
  EXPECT_EQ(turned.strides[0][1], 1);
  EXPECT_EQ(turned.strides[1][1], 3);

  const std::array scalar{Strides()};
  EXPECT_EQ(detail::make_loops({}, scalar).total, 1);
  EXPECT_EQ(detail::make_loops({}, scalar).ndim, 1);
  const std::array empty{row_major({3, 0})};
  EXPECT_EQ(detail::make_loops({3, 0}, empty).total, 0);
}

}  // namespace
}  // namespace paceline
