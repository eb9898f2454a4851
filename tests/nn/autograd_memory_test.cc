// Values that share memory with others: which reads are gradients, which writes are noticed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/autograd.h>
#include <paceline/kernel.h>
#include <paceline/ops.h>
#include <support/refusal.h>

#include <cmath>
#include <functional>
#include <memory>
#include <thread>

namespace paceline {
namespace {

using test::refusal_of;
using testing::ElementsAre;
using testing::HasSubstr;

NDArray vector(const std::vector<double>& values) {
  return NDArray::from(values, {static_cast<std::int64_t>(values.size())});
}

// x with a gradient, and a tape that watches it.
struct Watched {
  explicit Watched(const std::vector<double>& values)
      : x(vector(values)), gradient(NDArray::full(x.shape(), 99, DType::kFloat64)) {
    tape.watch(x, gradient);
  }
  std::vector<double> gradient_of(const NDArray& loss) {
    tape.backward(loss);
    return gradient.to_vector<double>();
  }

  NDArray x, gradient;
  Tape tape;
};

TEST(TapeMemory, ConstantsMayBeWrittenBesideAValue) {
  for (const bool by_fill : {true, false}) {
    Watched w({1, 2});
    const NDArray y = NDArray::zeros({4}, DType::kFloat64);
    y.narrow(0, 0, 2).copy_from(w.x);
    if (by_fill)
      y.narrow(0, 2, 4).fill(1);
    else
      y.narrow(0, 2, 4).copy_from(vector({1, 1}));
    EXPECT_THAT(w.gradient_of(sum(y)), ElementsAre(1, 1));
  }
}

TEST(TapeMemory, AnOperatorInPlaceMayWriteConstantsBesideAValue) {
  Watched w({1, 2});
  const NDArray y = NDArray::zeros({4}, DType::kFloat64);
  y.narrow(0, 0, 2).copy_from(w.x);
  NDArray rest = y.narrow(0, 2, 4);
  rest += 5;
  EXPECT_THAT(w.gradient_of(sum(square(y))), ElementsAre(2, 4));
}

// The write that the tape sees leaves part of what the one that it does not see has changed.
TEST(TapeMemory, AWriteThatIsSeenHidesNoneThatIsNot) {
  Watched w({1, 2});
  const NDArray y = square(w.x);
  kernels::scale(2, y);
  y.narrow(0, 0, 1).fill(0);
  EXPECT_THAT(refusal_of([&] { w.tape.backward(sum(y)); }), HasSubstr("by something that a Tape does not see"));
}

TEST(TapeMemory, ManyWritesBesideAValueAreRemembered) {
  constexpr std::int64_t kSteps = 5000;
  Watched w({2});
  const NDArray states = NDArray::zeros({kSteps + 1, 1}, DType::kFloat64);
  states.at(0).copy_from(w.x);
  // Each square saves its row.
  for (std::int64_t i = 0; i < kSteps; ++i) states.at(i + 1).copy_from(square(states.at(i)) * 0.5);
  EXPECT_THAT(w.gradient_of(sum(states.at(kSteps))), ElementsAre(std::pow(2.0, kSteps)));
}

// One launch writes two parts of a block, of which the square saves the first.
TEST(TapeMemory, BothPartsThatACallWritesAreNoted) {
  static const Kernel two_fills{
      .name = "two_fills",
      .cpu = [](const KernelContext&, std::span<const Tensor>, std::span<const Tensor> out, const void*) {
        for (const Tensor& part : out) *part.as<double>() = 5;
      }};
  for (const bool first : {true, false}) {
    Watched w({2});
    const NDArray block = NDArray::zeros({4}, DType::kFloat64), used = block.narrow(0, 0, 1);
    block.narrow(0, 3, 4).fill(1);
    const NDArray loss = sum(w.x * used);
    const NDArray parts[] = {first ? used : block.narrow(0, 1, 2), first ? block.narrow(0, 1, 2) : used};
    launch(two_fills, {}, parts, nullptr, {});
    EXPECT_THAT(refusal_of([&] { w.tape.backward(loss); }), HasSubstr("was written in place after it was recorded"));
  }
}

// Forward the second input, backward to the first: a straight-through estimator.
const OpDef& straight_through() {
  static const OpDef op =
      OpDef("straight_through")
          .input("x")
          .input("hard")
          .forward([](const std::vector<NDArray>& inputs, const void*) -> std::vector<NDArray> { return {inputs[1]}; })
          .gradient([](const OpCall&, const std::vector<NDArray>& gradients) {
            return std::vector<Gradient>{gradients[0], Gradient()};
          });
  return op;
}

TEST(TapeMemory, AnOperatorMayReturnAnInputThatIsNotFollowed) {
  Watched w({1, 2});
  const NDArray constant = vector({5, 6});
  const NDArray y = invoke(straight_through(), {w.x, constant})[0];
  EXPECT_THAT(w.gradient_of(sum(y * 2.0) + sum(constant * 3.0)), ElementsAre(2, 2));

  Watched rounded({1.4, 2.6});
  const NDArray hard = invoke(straight_through(), {rounded.x, stop_gradient(round(rounded.x))})[0];
  EXPECT_THAT(hard.to_vector<double>(), ElementsAre(1, 3));
  EXPECT_THAT(rounded.gradient_of(sum(square(hard))), ElementsAre(2, 6));

  Watched own({1, 2});
  EXPECT_THAT(own.gradient_of(sum(invoke(straight_through(), {own.x, stop_gradient(own.x)})[0])), ElementsAre(1, 1));
}

TEST(TapeMemory, AnOperatorMayReturnABroadcastView) {
  static const OpDef expand =
      OpDef("expand")
          .input("x")
          .forward([](const std::vector<NDArray>& inputs, const void*) -> std::vector<NDArray> {
            return {sum(inputs[0]).broadcast_to({3})};
          })
          .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
            return {sum(gradients[0]).broadcast_to(call.input_specs[0].shape)};
          });
  Watched w({1, 2});
  EXPECT_THAT(w.gradient_of(sum(invoke(expand, {w.x})[0].narrow(0, 0, 1))), ElementsAre(1, 1));
}

TEST(TapeMemory, AGradientOfAnotherShapeNamesTheOperator) {
  static const OpDef wrong = OpDef("wrong")
                                 .input("x")
                                 .forward([](const std::vector<NDArray>& inputs, const void*) -> std::vector<NDArray> {
                                   return {inputs[0] * 2.0};
                                 })
                                 .gradient([](const OpCall&, const std::vector<NDArray>& gradients) {
                                   return std::vector<Gradient>{sum(gradients[0])};
                                 });
  Watched w({1, 2});
  const NDArray loss = sum(invoke(wrong, {w.x})[0]);
  EXPECT_THAT(refusal_of([&] { w.tape.backward(loss); }),
              HasSubstr("[wrong] the gradient rule gives () for input 0, whose shape is (2,)"));
}

TEST(TapeMemory, TapesEndInAnyOrder) {
  const NDArray x = vector({3}), outer_gradient = vector({0}), inner_gradient = vector({0});
  auto outer = std::make_unique<Tape>();
  outer->watch(x, outer_gradient);
  const NDArray loss = sum(square(x));
  {
    Tape inner;
    inner.watch(x, inner_gradient);
    outer->backward(loss);
    inner.backward(sum(x * x * x));  // records after the outer one has ended
  }
  outer.reset();
  EXPECT_EQ(Recorder::current(), nullptr);
  EXPECT_THAT((x + 1.0).to_vector<double>(), ElementsAre(4));
  EXPECT_THAT(outer_gradient.to_vector<double>(), ElementsAre(6));
  EXPECT_THAT(inner_gradient.to_vector<double>(), ElementsAre(27));
}

TEST(TapeMemory, ATapeEndsOnItsThread) {
  Watched w({1});
  const NDArray loss = sum(w.x);
  std::string refusal;
  std::thread([&] { refusal = refusal_of([&] { w.tape.backward(loss); }); }).join();
  EXPECT_THAT(refusal, HasSubstr("records on the thread that made it"));
  w.tape.stop();
  std::thread([&] { w.tape.backward(loss); }).join();
  EXPECT_THAT(w.gradient.to_vector<double>(), ElementsAre(1));
}

// The serial engine runs a task within push(), on the thread that records.
TEST(TapeMemory, WhatATaskDoesIsNotRecorded) {
  for (const bool serial : {true, false}) {
    const auto engine = serial ? make_serial_engine() : make_threaded_engine();
    const auto array = [&](double value) { return NDArray::full({1}, value, DType::kFloat64, {}, *engine); };
    const NDArray x = array(3), gradient = array(99), y = array(0), spare = array(0);
    Tape tape;
    tape.watch(x, gradient);
    y.copy_from(x);
    engine->push({"copy"}, std::vector{x.variable()}, std::vector{spare.variable()}, [&](TaskContext&) {
      EXPECT_EQ(Recorder::current(), nullptr);
      EXPECT_EQ(detail::array_recorder(), nullptr);
    });
    EXPECT_EQ(Recorder::current(), &tape);
    tape.backward(sum(y));
    EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(1));
  }
}

// An array that shows many values, read in another order than theirs, is laid out once, not once for each of them.
TEST(TapeMemory, ManyValuesOfOneArrayShareItsGradient) {
  Watched w({2});
  const NDArray buffer = NDArray::zeros({3, 2}, DType::kFloat64);
  for (int row = 0; row < 3; ++row) buffer.at(row).copy_from(w.x * (row + 1.0));
  const NDArray weights = NDArray::from(std::vector<double>{1, 2, 3, 4, 5, 6}, {2, 3});
  // Row r has the weights r + 1 and r + 4.
  EXPECT_THAT(w.gradient_of(sum(buffer.permute({1, 0}) * weights)), ElementsAre(1 * 5 + 2 * 7 + 3 * 9));
}

TEST(TapeMemory, ASparseGradientOutlivesWhatIsAddedToItsMemory) {
  Watched w({1, 2});
  const NDArray y = w.x * 2.0, z = vector({7});
  y.narrow(0, 0, 1).copy_from(z);
  w.tape.watch_sparse(y);
  w.tape.backward(sum(y.at(0)) + sum(y.at(1)));
  EXPECT_THAT(w.tape.sparse_gradient(y).dense.to_vector<double>(), ElementsAre(1, 1));
  EXPECT_THAT(w.gradient.to_vector<double>(), ElementsAre(0, 2));
}

TEST(TapeMemory, WhatCannotBeWatchedIsSaid) {
  const NDArray x = vector({1, 2});
  Tape tape;
  EXPECT_THAT(refusal_of([&] { tape.watch(x, NDArray()); }), HasSubstr("the gradient is none"));
  EXPECT_THAT(refusal_of([&] { tape.watch(NDArray(), x); }), HasSubstr("the value is none"));
  EXPECT_THAT(refusal_of([&] { tape.watch(x, vector({0}).broadcast_to({2})); }), HasSubstr("more than once"));
  EXPECT_THAT(refusal_of([&] { tape.watch(vector({0}).broadcast_to({2}), x); }), HasSubstr("more than once"));
  tape.stop();
  EXPECT_THAT(refusal_of([&] { tape.watch(x, x.clone()); }), HasSubstr("backward() or stop() was called"));
}

// The watched element stays protected when writes beside it become one value.
TEST(TapeMemory, AWatchedArrayStaysWatchedBesideOtherValues) {
  const NDArray block = NDArray::zeros({4}, DType::kFloat64), gradient = vector({0});
  Watched w({1, 2});
  w.tape.watch(block.narrow(0, 0, 1), gradient);
  block.narrow(0, 1, 3).copy_from(w.x);
  block.narrow(0, 2, 4).copy_from(w.x * 3.0);
  EXPECT_THAT(refusal_of([&] { block.narrow(0, 0, 1).fill(9); }), HasSubstr("that a Tape watches"));
  EXPECT_THAT(w.gradient_of(sum(block)), ElementsAre(1 + 3, 3));
  EXPECT_THAT(gradient.to_vector<double>(), ElementsAre(1));
}

// The refusal comes before the array is written.
TEST(TapeMemory, StatisticsThatAreWatchedAreNotOverwritten) {
  const NDArray x = NDArray::from(std::vector<double>{1, 2, 3, 4}, {4, 1}), mean = vector({0.5}),
                variance = vector({1});
  const NDArray scale = vector({1}), shift = vector({0}), gradient = vector({0});
  Tape tape;
  tape.watch(mean, gradient);
  tape.watch(scale, vector({0}));
  EXPECT_THAT(refusal_of([&] { batch_norm(x, scale, shift, mean, variance, {.training = true}); }),
              HasSubstr("that a Tape watches"));
  EXPECT_THAT(mean.to_vector<double>(), ElementsAre(0.5));
}

}  // namespace
}  // namespace paceline
