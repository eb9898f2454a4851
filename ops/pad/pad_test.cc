#include <paceline/ops.h>
#include <support/operator_case.h>

namespace paceline::test {
namespace {

const RegisterCases kPad(
    "pad",
    {{.name = "2-d",
      .inputs = {array({1, 2}, {1, 2})},
      .attributes = with(PadAttributes{{{1, 0}, {0, 2}}, 7}),
      .expected = {array({2, 4}, {7, 7, 7, 7, 1, 2, 7, 7})}},
     {.name = "nothing added",
      .inputs = {sample({2, 3}, 1)},
      .attributes = with(PadAttributes{{{0, 0}, {0, 0}}}),
      .expected = {sample({2, 3}, 1)}},
     {.name = "empty",
      .inputs = {array({0}, {})},
      .attributes = with(PadAttributes{{{1, 1}}, 2}),
      .expected = {array({2}, {2, 2})},
      .gradient = false}},
    {{"got 1 pairs of widths", {sample({2, 3}, 1)}, with(PadAttributes{{{0, 0}}})},
     {"widths of axis 0 are -1 and 0", {sample({2}, 1)}, with(PadAttributes{{{-1, 0}}})},
     {"is too large", {sample({2}, 1)}, with(PadAttributes{{{std::int64_t{1} << 62, std::int64_t{1} << 62}}})}});

}  // namespace
}  // namespace paceline::test
