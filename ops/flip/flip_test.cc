#include <paceline/ops.h>
#include <support/operator_case.h>

namespace paceline::test {
namespace {

const CaseArray kX = array({2, 3}, {1, 2, 3, 4, 5, 6});

const RegisterCases kFlip(
    "flip",
    {{.name = "all", .inputs = {kX}, .expected = {array({2, 3}, {6, 5, 4, 3, 2, 1})}},
     {.name = "rows",
      .inputs = {kX},
      .attributes = with(FlipAttributes{{0}}),
      .expected = {array({2, 3}, {4, 5, 6, 1, 2, 3})}},
     {.name = "columns",
      .inputs = {kX},
      .attributes = with(FlipAttributes{{-1}}),
      .expected = {array({2, 3}, {3, 2, 1, 6, 5, 4})}},
     {.name = "outer of three",
      .inputs = {array({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})},
      .attributes = with(FlipAttributes{{0, 2}}),
      .expected = {array({2, 2, 2}, {6, 5, 8, 7, 2, 1, 4, 3})}},
     {.name = "large", .inputs = {sample({300, 301}, 2)}, .attributes = with(FlipAttributes{{1}})},
     {.name = "empty", .inputs = {array({0, 2}, {})}, .expected = {array({0, 2}, {})}, .gradient = false}},
    {{"axis 1 occurs twice", {kX}, with(FlipAttributes{{1, 1}})}, {"axis 2", {kX}, with(FlipAttributes{{2}})}});

}  // namespace
}  // namespace paceline::test
