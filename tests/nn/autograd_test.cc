#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/autograd.h>
#include <paceline/ops.h>

#include <functional>

namespace paceline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

NDArray vector(const std::vector<double>& values) {
  return NDArray::from(values, {static_cast<std::int64_t>(values.size())});
}

// The gradient of sum(f(x)) at x by the tape.
std::vector<double> gradient_of(const std::vector<double>& x, const std::function<NDArray(const NDArray&)>& f) {
  const NDArray value = vector(x), gradient = NDArray::zeros(value.shape(), DType::kFloat64);
  Tape tape;
  tape.watch(value, gradient);
  tape.backward(sum(f(value)));
  return gradient.to_vector<double>();
}

TEST(Tape, StepsHaveAGradientOfZeros) {
  for (NDArray (*step)(const NDArray&) : {round, floor, ceil, sign}) {
    const NDArray x = NDArray::from<double>({-1.4, 0.3, 2.6}, {3});
    const NDArray gradient = NDArray::full({3}, 7, DType::kFloat64);
    Tape tape;
    tape.watch(x, gradient);
    tape.backward(sum(step(x)));
    EXPECT_EQ(gradient.to_vector<double>(), std::vector<double>(3, 0));
  }
}

TEST(Tape, AddsUpAllPaths) {
  // x^2 + 3x + x * (x + 1): derivative 4x + 4
  EXPECT_THAT(gradient_of({1, -2}, [](const NDArray& x) { return square(x) + x * 3.0 + x * (x + 1.0); }),
              ElementsAre(8, -4));
}

TEST(Tape, FollowsViews) {
  EXPECT_THAT(gradient_of({1, 2, 3, 4},
                          [](const NDArray& x) {
                            const NDArray matrix = reshape(x, {2, 2});
                            return transpose(matrix) * NDArray::from(std::vector<double>{1, 10, 100, 1000}, {2, 2});
                          }),
              ElementsAre(1, 100, 10, 1000));
}

TEST(Tape, ReshapeToTheSameShapeIsNoLoop) {
  EXPECT_THAT(gradient_of({1, 2}, [](const NDArray& x) { return square(reshape(reshape(x, {2}), {2})); }),
              ElementsAre(2, 4));
}

TEST(Tape, WhatTheLossIgnoresGetsZeros) {
  const NDArray used = vector({2}), unused = vector({5}), other = vector({7});
  const NDArray a = vector({9}), b = vector({9});
  Tape tape;
  tape.watch(used, a);
  tape.watch(unused, b);
  const NDArray ignored = square(unused * other);
  tape.backward(sum(square(used)));
  EXPECT_THAT(a.to_vector<double>(), ElementsAre(4));
  EXPECT_THAT(b.to_vector<double>(), ElementsAre(0));
}

TEST(Tape, Accumulates) {
  const NDArray x = vector({3}), gradient = vector({0});
  for (int i = 0; i < 2; ++i) {
    Tape tape;
    tape.watch(x, gradient);
    tape.backward(sum(square(x)), /*accumulate=*/i > 0);
  }
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(12));
}

TEST(Tape, ConstantsAreNotRecorded) {
  const NDArray x = vector({1}), gradient = vector({0});
  Tape tape;
  tape.watch(x, gradient);
  const NDArray constant = exp(vector({2}));
  EXPECT_THROW(tape.backward(sum(constant)), InvalidArgument);
}

TEST(Tape, FindsWritesInPlace) {
  const NDArray x = vector({1, 2}), gradient = vector({0, 0});
  Tape tape;
  tape.watch(x, gradient);
  const NDArray y = square(x);
  const NDArray loss = sum(square(y));
  y.fill(0);
  try {
    tape.backward(loss);
    FAIL() << "the write was not found";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("[square]"));
    EXPECT_THAT(error.what(), HasSubstr("written in place"));
  }
}

TEST(Tape, RefusesToWriteInPlaceWhatItFollows) {
  const NDArray x = vector({1, 2}), gradient = vector({0, 0}), constant = vector({3, 4});
  const auto refused = [](const auto& write) {
    try {
      write();
      ADD_FAILURE() << "the write was not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("in place while a Tape follows it"));
    }
  };
  Tape tape;
  tape.watch(x, gradient);
  const NDArray y = square(x);
  refused([&] { x += 1; });
  refused([&] { relu_(y); });
  refused([&] { floor_(y); });
  refused([&] { constant += y; });
  constant *= 2;  // nothing that the tape follows
  const NDArray loss = sum(y * constant);
  tape.backward(loss);
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(12, 32));
  x -= gradient * 0.5;
  EXPECT_THAT(x.to_vector<double>(), ElementsAre(-5, -14));
}

TEST(Tape, RefusesToWriteInPlaceAnotherViewOfWhatItFollows) {
  const NDArray x = NDArray::full({2}, 1), gradient(x.shape());
  Tape tape;
  tape.watch(x, gradient);
  const NDArray y = x + x;
  NDArray part = y.narrow(0, 0, 1);
  EXPECT_THROW(part *= 3.0, InvalidArgument);
}

TEST(Tape, FindsOperatorsInPlaceOnWhatItSaved) {
  const NDArray x = vector({1, 2}), gradient = vector({0, 0}), constant = vector({3, 4});
  Tape tape;
  tape.watch(x, gradient);
  const NDArray loss = sum(x * constant);
  constant += 1;
  EXPECT_THROW(tape.backward(loss), InvalidArgument);
}

TEST(Tape, TapesNest) {
  const NDArray x = vector({3}), outer_gradient = vector({0}), inner_gradient = vector({0});
  Tape outer;
  outer.watch(x, outer_gradient);
  const NDArray y = square(x);
  {
    Tape inner;
    inner.watch(x, inner_gradient);
    inner.backward(sum(x * x * x));
  }
  outer.backward(sum(y));
  EXPECT_THAT(outer_gradient.to_vector<double>(), ElementsAre(6));
  EXPECT_THAT(inner_gradient.to_vector<double>(), ElementsAre(27));
}

TEST(Tape, GivesRowSparseGradients) {
  const NDArray table = NDArray::from(std::vector<double>{1, 2, 3, 4, 5, 6}, {3, 2});
  const NDArray ids = NDArray::from(std::vector<std::int64_t>{2, 0, 2}, {3});
  for (const bool by_take : {false, true}) {
    Tape tape;
    tape.watch_sparse(table);
    tape.backward(sum(square(by_take ? take(table, ids, 0, /*sparse_gradient=*/true)
                                     : embedding(ids, table, /*sparse_gradient=*/true))));
    const Gradient gradient = tape.sparse_gradient(table);
    ASSERT_TRUE(gradient.is_sparse());
    EXPECT_THAT(gradient.sparse.rows.to_vector<std::int64_t>(), ElementsAre(2, 0, 2));
    const NDArray dense = NDArray::zeros({3, 2}, DType::kFloat64);
    scatter_add(dense, gradient.sparse);
    EXPECT_THAT(dense.to_vector<double>(), ElementsAre(2, 4, 0, 0, 20, 24));
  }
}

}  // namespace
}  // namespace paceline
