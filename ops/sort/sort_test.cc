#include <paceline/ops.h>
#include <support/operator_case.h>

#include <cmath>
#include <limits>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

CaseArray places(const Shape& shape, std::vector<double> values) {
  return typed(DType::kInt64, shape, std::move(values));
}

// The definition, by counting what comes before each element.
std::vector<CaseArray> ranked(const CaseArray& x) {
  const auto size = static_cast<std::size_t>(x.shape.back());
  std::vector<CaseArray> result{x, typed(DType::kInt64, x.shape, std::vector<double>(x.values.size()))};
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const std::size_t row = i / size * size;
    std::size_t rank = row;
    for (std::size_t j = row; j < row + size; ++j)
      rank += x.values[j] < x.values[i] || (x.values[j] == x.values[i] && j < i);
    result[0].values[rank] = x.values[i];
    result[1].values[rank] = static_cast<double>(i - row);
  }
  return result;
}

const CaseArray kLong = sample({2, 500}, 3);
// Small integers: most occur often.
const CaseArray kRepeated = mapped(sample({1, 700}, 4, 0, 20), [](double x) { return std::floor(x); });

const RegisterCases kSort(
    "sort",
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
     {.name = "long", .inputs = {kLong}, .expected = ranked(kLong)},
     {.name = "many equals", .inputs = {kRepeated}, .expected = ranked(kRepeated), .gradient = false},
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
