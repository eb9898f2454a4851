#include <paceline/ops.h>
#include <paceline/random.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

namespace paceline::test {
namespace {

CaseArray direct(const CaseArray& x, double rate, std::uint64_t seed, std::uint64_t call = 0) {
  CaseArray y = x;
  for (std::size_t i = 0; i < y.values.size(); ++i) {
    const double number = random_bits(seed, i / 4, call).word[i % 4] * 0x1p-32;
    y.values[i] = number < rate ? 0 : x.values[i] / (1 - rate);
  }
  return y;
}

OperatorCase drop(const std::string& name, const Shape& shape, double rate, std::uint64_t seed) {
  const CaseArray x = sample(shape, 1);
  return {.name = name,
          .inputs = {x, no_array()},
          .attributes = with(DropoutAttributes{rate, seed}),
          .expected = {direct(x, rate, seed)}};
}

OperatorCase numbered(const Shape& shape, std::int64_t call) {
  const CaseArray x = sample(shape, 1);
  return {.name = str("call ", call),
          .inputs = {x, typed(DType::kInt64, {1}, {static_cast<double>(call)})},
          .attributes = with(DropoutAttributes{0.5, 7}),
          .expected = {direct(x, 0.5, 7, static_cast<std::uint64_t>(call))}};
}

const RegisterCases kDropout(
    "dropout",
    {drop("half", {5, 7}, 0.5, 1), drop("seldom", {101}, 0.1, 2), drop("never", {6}, 0, 3),
     drop("long", {20003}, 0.3, 4), drop("scalar", {}, 0.5, 6), numbered({31}, 1), numbered({31}, 12345678)},
    {{"rate is 1, expected 0 <= rate < 1", {sample({2}, 1), no_array()}, with(DropoutAttributes{1.0})},
     {"rate is -0.5", {sample({2}, 1), no_array()}, with(DropoutAttributes{-0.5})},
     {"x is int32", {typed(DType::kInt32, {1}, {1}), no_array()}},
     {"(2,) on cpu, expected one int64", {sample({2}, 1), sample({2}, 2)}}});

TEST(Dropout, KeepsTheShareAskedFor) {
  constexpr std::int64_t kCount = 100000;
  const NDArray ones = NDArray::full({kCount}, 1);
  const double kept = sum(greater(dropout(ones, 0.2, 99), 0).cast(DType::kFloat64)).item<double>();
  EXPECT_NEAR(kept / kCount, 0.8, 0.006);  // five standard deviations
  EXPECT_NE(dropout(ones, 0.2, 1).to_vector<float>(), dropout(ones, 0.2, 2).to_vector<float>());
}

}  // namespace
}  // namespace paceline::test
