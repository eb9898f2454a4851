#include <paceline/ops.h>
#include <support/operator_case.h>

#include <limits>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const CaseArray kScores = array({3, 3}, {1, 3, 2, 5, 5, 0, -3, -2, -1});

const RegisterCases kArgmin(
    "argmin",
    {{.name = "rows, first of equals",
      .inputs = {array({2, 3}, {3, 1, 1, -2, 0, 5})},
      .expected = {typed(DType::kInt64, {2}, {1, 0})}},
     {.name = "NaN is smallest", .inputs = {array({3}, {1, kNaN, -9})}, .expected = {typed(DType::kInt64, {}, {1})}},
     {.name = "no rows", .inputs = {array({0, 2}, {})}, .expected = {typed(DType::kInt64, {0}, {})}}},
    {{"has no elements", {array({2, 0}, {})}}});

const RegisterCases kArgmax(
    "argmax",
    {{.name = "rows, first of equals", .inputs = {kScores}, .expected = {typed(DType::kInt64, {3}, {1, 0, 2})}},
     {.name = "columns, kept",
      .inputs = {kScores},
      .attributes = with(ArgmaxAttributes{0, true}),
      .expected = {typed(DType::kInt64, {1, 3}, {1, 1, 0})}},
     {.name = "NaN is largest",
      .inputs = {array({4}, {1, kNaN, 9, kNaN})},
      .expected = {typed(DType::kInt64, {}, {1})}},
     {.name = "integers",
      .inputs = {typed(DType::kInt32, {2, 2}, {-7, -8, 1, 2})},
      .expected = {typed(DType::kInt64, {2}, {0, 1})}},
     {.name = "one element", .inputs = {array({1}, {4})}, .expected = {typed(DType::kInt64, {}, {0})}},
     {.name = "no rows", .inputs = {array({0, 2}, {})}, .expected = {typed(DType::kInt64, {0}, {})}}},
    {{"has no elements", {array({2, 0}, {})}}, {"axis 1", {array({2}, {1, 2})}, with(ArgmaxAttributes{1})}});

const RegisterCases kTop1("top1_count",
                          {{.name = "two of three",
                            .inputs = {kScores, typed(DType::kInt32, {3}, {1, 1, 2})},
                            .expected = {typed(DType::kInt64, {}, {2})}},
                           {.name = "float labels",
                            .inputs = {kScores, typed(DType::kFloat32, {3}, {1, 0, 2})},
                            .expected = {typed(DType::kInt64, {}, {3})}},
                           {.name = "no rows",
                            .inputs = {array({0, 2}, {}), typed(DType::kInt32, {0}, {})},
                            .expected = {typed(DType::kInt64, {}, {0})}}},
                          {{"label 3 at position 2 is outside [0, 3)", {kScores, typed(DType::kInt32, {3}, {0, 1, 3})}},
                           {"it is no whole number", {kScores, typed(DType::kFloat32, {3}, {0, 1.7, 0})}},
                           {"labels has shape (2,), expected (3,)", {kScores, typed(DType::kInt32, {2}, {0, 1})}}});

}  // namespace
}  // namespace paceline::test
