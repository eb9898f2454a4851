// Sums and means of many float32 numbers keep their digits, along every kind of axis.

#include <paceline/ops.h>

#include <gtest/gtest.h>

#include <cmath>

namespace paceline {
namespace {

void expect_exact(const NDArray& result, double expected) {
  for (const double value : result.to_vector<double>()) ASSERT_NEAR(value / expected, 1, 1e-6);
}

TEST(Sums, AMillionTenthsAreAHundredThousand) {
  for (const std::int64_t count : {1000000, 20000000}) {
    const NDArray x = NDArray::full({count}, 0.1);
    expect_exact(sum(x), static_cast<double>(count) / 10);
    expect_exact(mean(x), 0.1);
  }
}

TEST(Sums, RowsAndColumnsAreAsExact) {
  const NDArray x = NDArray::full({1000, 1000}, 0.1), deep = NDArray::full({100000, 16}, 0.1);
  expect_exact(sum(x, {0}), 100);
  expect_exact(sum(x, {1}), 100);
  expect_exact(sum(deep, {0}), 10000);
  expect_exact(mean(deep, {0}), 0.1);
  expect_exact(sum(transpose(deep), {1}), 10000);
  expect_exact(sum(NDArray::full({50, 40, 500}, 0.1), {0, 2}), 2500);
}

}  // namespace
}  // namespace paceline
