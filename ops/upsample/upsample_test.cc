#include <paceline/ops.h>
#include <support/operator_case.h>

namespace paceline::test {
namespace {

const RegisterCases kUpsample(
    "upsample",
    {{.name = "nearest",
      .inputs = {array({1, 1, 3}, {1, 2, 3})},
      .attributes = with(UpsampleAttributes{{5}}),
      .expected = {array({1, 1, 5}, {1, 1, 2, 2, 3})}},
     {.name = "nearest, fewer",
      .inputs = {array({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6})},
      .attributes = with(UpsampleAttributes{{1, 2}}),
      .expected = {array({1, 1, 1, 2}, {1, 2})}},
     {.name = "linear",
      .inputs = {array({1, 1, 2}, {1, 3})},
      .attributes = with(UpsampleAttributes{{4}, true}),
      .expected = {array({1, 1, 4}, {1, 1.5, 2.5, 3})}},
     {.name = "bilinear",
      .inputs = {array({1, 1, 2, 2}, {1, 3, 5, 7})},
      .attributes = with(UpsampleAttributes{{4, 2}, true}),
      .expected = {array({1, 1, 4, 2}, {1, 3, 2, 4, 4, 6, 5, 7})}},
     {.name = "trilinear",
      .inputs = {sample({2, 2, 2, 3, 2}, 1)},
      .attributes = with(UpsampleAttributes{{3, 4, 5}, true})},
     {.name = "bilinear, fewer",
      .inputs = {sample({1, 2, 7, 5}, 2)},
      .attributes = with(UpsampleAttributes{{3, 2}, true})},
     {.name = "one element",
      .inputs = {array({1, 1, 1, 1}, {2})},
      .attributes = with(UpsampleAttributes{{1, 2}, true}),
      .expected = {array({1, 1, 1, 2}, {2, 2})}},
     {.name = "no examples",
      .inputs = {array({0, 1, 2}, {})},
      .attributes = with(UpsampleAttributes{{4}}),
      .expected = {array({0, 1, 4}, {})},
      .gradient = false}},
    {{"a size for each spatial axis", {sample({1, 1, 2, 2}, 1)}, with(UpsampleAttributes{{4}})},
     {"expected positive sizes", {sample({1, 1, 2}, 1)}, with(UpsampleAttributes{{0}})},
     {"x is int32", {typed(DType::kInt32, {1, 1, 1}, {1})}, with(UpsampleAttributes{{2}})}});

const RegisterCases kBackward("upsample_backward", {}, {{"x has shape ()", {sample({1, 1, 2}, 1)}}});

}  // namespace
}  // namespace paceline::test
