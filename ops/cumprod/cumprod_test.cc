#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

namespace paceline::test {
namespace {

const RegisterCases kCumprod(
    "cumprod",
    {{.name = "rows",
      .inputs = {array({2, 3}, {1, 2, 3, 4, 5, 6})},
      .expected = {array({2, 3}, {1, 2, 6, 4, 20, 120})}},
     {.name = "columns",
      .inputs = {array({2, 3}, {1, 2, 3, 4, 5, 6})},
      .attributes = with(CumprodAttributes{0}),
      .expected = {array({2, 3}, {1, 2, 3, 4, 10, 18})}},
     {.name = "one zero", .inputs = {array({4}, {2, 0, 3, 4})}, .expected = {array({4}, {2, 0, 0, 0})}},
     {.name = "two zeros", .inputs = {array({5}, {2, 0, 3, 0, 4})}, .expected = {array({5}, {2, 0, 0, 0, 0})}},
     {.name = "integers wrap",
      .inputs = {typed(DType::kInt8, {3}, {100, 2, 3})},
      .expected = {typed(DType::kInt8, {3}, {100, -56, 88})},
      .gradient = false},
     {.name = "middle of three", .inputs = {sample({2, 5, 3}, 1)}, .attributes = with(CumprodAttributes{1})},
     {.name = "empty", .inputs = {array({2, 0}, {})}, .expected = {array({2, 0}, {})}, .gradient = false}},
    {{"x is bool (1,)", {typed(DType::kBool, {1}, {1})}},
     {"axis 1", {array({2}, {1, 2})}, with(CumprodAttributes{1})}});

const RegisterCases kBackward("cumprod_backward", {}, {{"gradient is float64 (2,)", {sample({2}, 1), sample({3}, 2)}}});

}  // namespace
}  // namespace paceline::test
