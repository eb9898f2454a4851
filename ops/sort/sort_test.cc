#include <paceline/ops.h>
#include <support/operator_case.h>

#include <limits>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

CaseArray places(const Shape& shape, std::vector<double> values) {
  return typed(DType::kInt64, shape, std::move(values));
}

const RegisterCases kSort("sort",
                          {{.name = "rows",
                            .inputs = {array({2, 3}, {3, 1, 2, -1, -3, -2})},
                            .expected = {array({2, 3}, {1, 2, 3, -3, -2, -1}), places({2, 3}, {1, 2, 0, 1, 2, 0})}},
                           {.name = "columns, descending",
                            .inputs = {array({3, 2}, {3, 1, 2, 5, 4, 0})},
                            .attributes = with(SortAttributes{0, true}),
                            .expected = {array({3, 2}, {4, 5, 3, 1, 2, 0}), places({3, 2}, {2, 1, 0, 0, 1, 2})}},
                           {.name = "equals and NaN",
                            .inputs = {array({5}, {kNaN, 1, 0, 1, kNaN})},
                            .expected = {array({5}, {0, 1, 1, kNaN, kNaN}), places({5}, {2, 1, 3, 0, 4})},
                            .gradient = false},
                           {.name = "long", .inputs = {sample({2, 500}, 3)}},
                           {.name = "empty",
                            .inputs = {array({2, 0}, {})},
                            .expected = {array({2, 0}, {}), places({2, 0}, {})},
                            .gradient = false}},
                          {{"axis 1", {array({2}, {1, 2})}, with(SortAttributes{1})}});

const RegisterCases kTopK("top_k",
                          {{.name = "largest",
                            .inputs = {array({2, 3}, {3, 1, 2, -1, -3, -2})},
                            .attributes = with(TopKAttributes{2}),
                            .expected = {array({2, 2}, {3, 2, -1, -2}), places({2, 2}, {0, 2, 0, 2})}},
                           {.name = "smallest of columns",
                            .inputs = {array({3, 2}, {3, 1, 2, 5, 4, 0})},
                            .attributes = with(TopKAttributes{1, 0, false}),
                            .expected = {array({1, 2}, {2, 0}), places({1, 2}, {1, 2})}},
                           {.name = "none",
                            .inputs = {array({3}, {3, 1, 2})},
                            .attributes = with(TopKAttributes{0}),
                            .expected = {array({0}, {}), places({0}, {})},
                            .gradient = false}},
                          {{"k is 4, expected 0 to 3", {sample({3}, 1)}, with(TopKAttributes{4})}});

}  // namespace
}  // namespace paceline::test
