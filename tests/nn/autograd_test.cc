#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/autograd.h>
#include <paceline/kernel.h>
#include <paceline/ops.h>
#include <support/refusal.h>

#include <functional>

namespace paceline {
namespace {

using test::refusal_of;
using testing::AllOf;
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

// What an integer keeps of a number does not change with it.
TEST(Tape, ACopyIntoIntegersHasNoGradient) {
  const NDArray x = NDArray::from<float>({1.5f, 2.5f}, {2}), whole = NDArray::zeros({2}, DType::kInt32);
  const NDArray gradient(Shape{2});
  Tape tape;
  tape.watch(x, gradient);
  whole.copy_from(x);
  tape.backward(sum(whole.cast(DType::kFloat32) * x));
  EXPECT_EQ(gradient.to_vector<float>(), (std::vector<float>{1, 2}));
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
    tape.backward(sum(square(x)), {.accumulate = i > 0});
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

TEST(Tape, RefusesToOverwriteWhatIsWatched) {
  const NDArray x = vector({1, 2}), gradient = vector({0, 0});
  const NDArray part = x.narrow(0, 0, 1);
  Tape tape;
  tape.watch(x, gradient);
  EXPECT_THAT(refusal_of([&] { x += 1; }), HasSubstr("[add_scalar] would overwrite an array that a Tape watches"));
  EXPECT_THAT(refusal_of([&] { part.fill(1); }), HasSubstr("[fill] would overwrite"));
  EXPECT_THAT(refusal_of([&] { part.copy_from(x.narrow(0, 1, 2)); }), HasSubstr("[copy_from] would overwrite"));
  EXPECT_THAT(refusal_of([&] { floor_(x); }), HasSubstr("[floor] would overwrite"));
  tape.backward(sum(square(x)));
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(2, 4));
  x -= gradient * 0.5;
  EXPECT_THAT(x.to_vector<double>(), ElementsAre(0, 0));
}

TEST(Tape, SaysWhereAGradientNeedsWhatWasOverwritten) {
  const NDArray x = vector({1, 2}), gradient = vector({0, 0});
  Tape tape;
  tape.watch(x, gradient);
  const NDArray y = square(x), loss = sum(square(y));
  y.narrow(0, 1, 2) *= 2.0;
  EXPECT_THAT(refusal_of([&] { tape.backward(loss); }),
              AllOf(HasSubstr("[square] an input was written in place"), HasSubstr("write to a copy")));
}

TEST(Tape, FindsAWriteThatItWasNotToldOf) {
  const NDArray x = vector({1, 2}), gradient = vector({0, 0});
  Tape tape;
  tape.watch(x, gradient);
  const NDArray y = square(x);
  kernels::scale(2, y);
  EXPECT_THAT(refusal_of([&] { y + 1.0; }), AllOf(HasSubstr("[add_scalar]"), HasSubstr("a Tape does not see")));
}

TEST(Tape, WritesBesideAnArrayInOneBlockDoNotTouchIt) {
  const NDArray block = NDArray::from(std::vector<double>{1, 2, 3, 4}, {2, 2});
  const NDArray left = block.narrow(1, 0, 1), right = block.narrow(1, 1, 2);
  const NDArray gradient = NDArray::zeros({2, 1}, DType::kFloat64), other = NDArray::zeros({2, 1}, DType::kFloat64);
  Tape tape;
  tape.watch(left, gradient);
  tape.watch(right, other);
  const NDArray loss = sum(square(left));
  tape.stop();
  right.fill(9);  // as an optimizer does
  tape.backward(loss);
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(2, 6));
  EXPECT_THAT(other.to_vector<double>(), ElementsAre(0, 0));
}

// A block whose parts are watched, read as a whole; and a view that is wider than what is watched.
TEST(Tape, AnArrayMayShowSeveralWatchedOnes) {
  const NDArray block = NDArray::from(std::vector<double>{1, 2, 3, 4}, {2, 2});
  const NDArray left = block.narrow(1, 0, 1), right = block.narrow(1, 1, 2);
  const NDArray of_left = NDArray::zeros({2, 1}, DType::kFloat64), of_right = NDArray::zeros({2, 1}, DType::kFloat64);
  Tape tape;
  tape.watch(left, of_left);
  tape.watch(right, of_right);
  tape.backward(sum(square(block)) + sum(block.permute({1, 0}).at(1)));
  EXPECT_THAT(of_left.to_vector<double>(), ElementsAre(2, 6));
  EXPECT_THAT(of_right.to_vector<double>(), ElementsAre(5, 9));
}

TEST(Tape, AWholeBlockMayBeReadInAnotherOrderThanItsWatchedPart) {
  const NDArray block = NDArray::from(std::vector<double>{1, 2, 3, 4}, {2, 2});
  const NDArray below = block.narrow(0, 1, 2), gradient = NDArray::zeros({1, 2}, DType::kFloat64);
  Tape tape;
  tape.watch(below, gradient);
  tape.backward(sum(block.permute({1, 0}) * NDArray::from(std::vector<double>{5, 6, 7, 8}, {2, 2})));
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(6, 8));
}

TEST(Tape, OverwritingOnePartOfAnArrayKeepsTheOthers) {
  const NDArray x = vector({1, 2}), gradient = vector({0, 0}), y = NDArray::zeros({4}, DType::kFloat64);
  Tape tape;
  tape.watch(x, gradient);
  y.narrow(0, 0, 2).copy_from(x);
  y.narrow(0, 2, 4).copy_from(x * 3.0);
  y.narrow(0, 0, 2).copy_from(x * 5.0);
  tape.backward(sum(y.narrow(0, 2, 4)) + sum(y.at(0)));
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(8, 3));
}

TEST(Tape, WatchesAnArrayTwiceAndAViewOfIt) {
  const NDArray x = vector({1, 2}), first = vector({0, 0}), second = vector({0, 0}), part = vector({0});
  Tape tape;
  tape.watch(x, first);
  tape.watch(x, second);
  tape.watch(x.narrow(0, 1, 2), part);
  tape.backward(sum(square(x)));
  EXPECT_THAT(first.to_vector<double>(), ElementsAre(2, 4));
  EXPECT_THAT(second.to_vector<double>(), ElementsAre(2, 4));
  EXPECT_THAT(part.to_vector<double>(), ElementsAre(4));
}

TEST(Tape, WatchesWhatIsComputedWithoutCuttingWhatLiesBefore) {
  const NDArray x = vector({1, 2}), of_x = vector({0, 0}), of_y = vector({0, 0}),
                of_loss = NDArray::zeros({}, DType::kFloat64);
  Tape tape;
  tape.watch(x, of_x);
  const NDArray y = square(x), before = sum(y);
  tape.watch(y, of_y);
  const NDArray loss = sum(y * y) + before;
  tape.watch(loss, of_loss);
  tape.backward(loss);
  EXPECT_THAT(of_y.to_vector<double>(), ElementsAre(3, 9));
  EXPECT_THAT(of_x.to_vector<double>(), ElementsAre(6, 36));
  EXPECT_EQ(of_loss.item<double>(), 1);
}

TEST(Tape, StopsGradients) {
  EXPECT_THAT(gradient_of({2, 3}, [](const NDArray& x) { return stop_gradient(x) * x; }), ElementsAre(2, 3));
  EXPECT_THAT(gradient_of({2, 3}, [](const NDArray& x) { return stop_gradient(x).narrow(0, 0, 1) * x; }),
              ElementsAre(2, 2));
  const NDArray x = vector({1});
  Tape tape;
  tape.watch(x, vector({0}));
  const NDArray y = x * 2.0, constant = stop_gradient(y.clone());
  EXPECT_THAT(refusal_of([&] { constant.copy_from(y); }), HasSubstr("[copy_from] would write"));
  EXPECT_THAT(refusal_of([&] { constant += y; }), HasSubstr("[add] would write"));
  EXPECT_THAT(refusal_of([&] { stop_gradient(y).fill(1); }), HasSubstr("[fill] would write"));
  EXPECT_THAT(refusal_of([&] { tape.watch(stop_gradient(x), vector({0})); }), HasSubstr("stop_gradient() made it"));
}

TEST(Tape, StartsFromAnyArrayAndGradient) {
  const NDArray x = vector({1, 2}), gradient = vector({0, 0});
  Tape tape;
  tape.watch(x, gradient);
  const NDArray y = square(x);
  tape.backward(y, vector({10, 100}), {.keep = true});
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(20, 400));
  tape.backward(y.narrow(0, 1, 2), vector({1}), {.accumulate = true});
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(20, 404));
  EXPECT_THAT(refusal_of([&] { tape.backward(y, vector({1, 1})); }), HasSubstr("{.keep = true}"));
}

TEST(Tape, RefusesALossThatIsNoScalar) {
  const NDArray x = vector({1, 2}), gradient = vector({0, 0});
  Tape tape;
  tape.watch(x, gradient);
  const NDArray y = square(x);
  EXPECT_THAT(refusal_of([&] { tape.backward(y); }), AllOf(HasSubstr("float64 (2,)"), HasSubstr("sum() or mean()")));
  EXPECT_THAT(refusal_of([&] { tape.backward(y, vector({1})); }), HasSubstr("the gradient is float64 (1,)"));
  tape.backward(sum(y));
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(2, 4));
}

// Forward it gives x, backward the gradient times -1.
TEST(Tape, AnOperatorOfOnesOwnMayReturnItsInput) {
  static const OpDef reversal =
      OpDef("reversal")
          .input("x")
          .forward([](const std::vector<NDArray>& inputs, const void*) { return inputs; })
          .gradient([](const OpCall&, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
            return {-gradients[0]};
          });
  EXPECT_THAT(gradient_of({1, 2}, [](const NDArray& x) { return invoke(reversal, {x})[0] * x + x; }),
              ElementsAre(1, 1));
  EXPECT_THAT(
      gradient_of({1, 2}, [](const NDArray& x) { return invoke(reversal, {invoke(reversal, {x})[0]})[0] * 3.0; }),
      ElementsAre(3, 3));
}

TEST(Tape, AnOperatorOfOnesOwnMayWriteIntoItsInput) {
  static const OpDef doubled =
      OpDef("doubled")
          .input("x")
          .forward([](const std::vector<NDArray>& inputs, const void*) {
            kernels::scale(2, inputs[0]);
            return inputs;
          })
          .gradient([](const OpCall&, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
            return {gradients[0] * 2.0};
          });
  EXPECT_THAT(gradient_of({1, 2},
                          [](const NDArray& x) {
                            const NDArray y = x * 5.0;
                            invoke(doubled, {y.narrow(0, 1, 2)});
                            return y;
                          }),
              ElementsAre(5, 10));
  EXPECT_THAT(refusal_of([&] {
                gradient_of({1, 2}, [](const NDArray& x) { return invoke(doubled, {x})[0]; });
              }),
              HasSubstr("[doubled] would overwrite an array that a Tape watches"));
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
