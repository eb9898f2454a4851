#include <paceline/ops.h>
#include <support/operator_case.h>

namespace paceline::test {
namespace {

const RegisterCases kTranspose(
    "transpose",
    {{.name = "matrix", .inputs = {array({2, 3}, {1, 2, 3, 4, 5, 6})}, .expected = {array({3, 2}, {1, 4, 2, 5, 3, 6})}},
     {.name = "axes",
      .inputs = {array({1, 2, 3}, {1, 2, 3, 4, 5, 6})},
      .attributes = with(TransposeAttributes{{2, 0, -2}}),
      .expected = {array({3, 1, 2}, {1, 4, 2, 5, 3, 6})}},
     {.name = "four", .inputs = {sample({2, 3, 4, 5}, 1)}, .attributes = with(TransposeAttributes{{0, 2, 3, 1}})},
     {.name = "scalar", .inputs = {array({}, {1})}, .expected = {array({}, {1})}}},
    {{"no permutation", {sample({2, 3}, 1)}, with(TransposeAttributes{{0, 0}})},
     {"no permutation", {sample({2, 3}, 1)}, with(TransposeAttributes{{1}})},
     {"[transpose]", {sample({2, 3}, 1)}, with(TransposeAttributes{{0, 2}})}});

}  // namespace
}  // namespace paceline::test
