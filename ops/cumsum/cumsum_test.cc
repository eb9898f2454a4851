#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

namespace paceline::test {
namespace {

const RegisterCases kCumsum(
    "cumsum",
    {{.name = "rows", .inputs = {array({2, 3}, {1, 2, 3, 4, 5, 6})}, .expected = {array({2, 3}, {1, 3, 6, 4, 9, 15})}},
     {.name = "columns, reverse",
      .inputs = {array({2, 3}, {1, 2, 3, 4, 5, 6})},
      .attributes = with(CumsumAttributes{0, true}),
      .expected = {array({2, 3}, {5, 7, 9, 4, 5, 6})}},
     {.name = "integers",
      .inputs = {typed(DType::kInt8, {3}, {100, 100, -100})},
      .expected = {typed(DType::kInt8, {3}, {100, -56, 100})},
      .gradient = false},
     {.name = "integers wrap",
      .inputs = {typed(DType::kInt64, {3}, {0x1p62, 0x1p62, 0x1p62})},
      .expected = {typed(DType::kInt64, {3}, {0x1p62, -0x1p63, -0x1p62})},
      .gradient = false},
     {.name = "long", .inputs = {sample({2, 900, 3}, 1)}, .attributes = with(CumsumAttributes{1}), .tolerance = 20},
     {.name = "empty", .inputs = {array({2, 0}, {})}, .expected = {array({2, 0}, {})}, .gradient = false}},
    {{"x is bool (1,)", {typed(DType::kBool, {1}, {1})}}, {"axis 1", {array({2}, {1, 2})}, with(CumsumAttributes{1})}});

TEST(Cumsum, KeepsItsDigits) {
  constexpr std::int64_t kMany = 1000000;  // added one by one in float32, a tenth makes 100958
  EXPECT_NEAR(cumsum(NDArray::full({kMany}, 0.1)).at(kMany - 1).item<float>(), kMany / 10, 0.01);
}

}  // namespace
}  // namespace paceline::test
