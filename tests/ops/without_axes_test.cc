// Operators along an axis, of arrays that have none.

#include <paceline/ops.h>

#include <gtest/gtest.h>

namespace paceline {
namespace {

TEST(WithoutAxes, AScalarIsALineOfOneElement) {
  const NDArray x = NDArray::from<float>({3}, {});
  for (const int axis : {-1, 0}) {
    EXPECT_EQ(softmax(x, axis).item<float>(), 1);
    EXPECT_EQ(log_softmax(x, axis).item<float>(), 0);
    EXPECT_EQ(cumsum(x, axis).item<float>(), 3);
    EXPECT_EQ(argmax(x, axis).item<std::int64_t>(), 0);
    EXPECT_EQ(argmin(x, axis, true).item<std::int64_t>(), 0);
    EXPECT_EQ(sort(x, axis).values.item<float>(), 3);
    EXPECT_EQ(argsort(x, axis).item<std::int64_t>(), 0);
    EXPECT_EQ(top_k(x, 1, axis).values.item<float>(), 3);
  }
  for (const NDArray& result : {softmax(x), log_softmax(x), cumsum(x), argmax(x), sort(x).values, sort(x).positions})
    EXPECT_EQ(result.shape(), Shape()) << result.describe();
}

TEST(WithoutAxes, ItHasNoSecondAxis) {
  const NDArray x = NDArray::from<float>({3}, {});
  EXPECT_THROW(softmax(x, 1), InvalidArgument);
  EXPECT_THROW(cumsum(x, -2), InvalidArgument);
  EXPECT_THROW(argmax(x, 1), InvalidArgument);
  EXPECT_THROW(sort(x, 1), InvalidArgument);
  EXPECT_THROW(top_k(x, 2), InvalidArgument);
}

}  // namespace
}  // namespace paceline
