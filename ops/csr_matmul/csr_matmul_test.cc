#include <paceline/ops.h>
#include <support/operator_case.h>

namespace paceline::test {
namespace {

CaseArray whole(std::vector<double> values) {
  const auto size = static_cast<std::int64_t>(values.size());
  return typed(DType::kInt64, {size}, std::move(values));
}

// 0 1 2
// 0 0 0
// 3 0 4
const CaseArray kStarts = whole({0, 2, 2, 4}), kColumns = whole({1, 2, 0, 2}), kValues = array({4}, {1, 2, 3, 4});
const CaseArray kB = array({3, 2}, {1, 2, 3, 4, 5, 6});

std::shared_ptr<const void> of_shape(const Shape& shape, bool transpose = false) {
  return with(CsrMatmulAttributes{shape, transpose});
}

// Thousands of elements, so that a team shares the work: 40 in each of 300 rows.
OperatorCase many(bool transpose) {
  const std::int64_t rows = 300, columns = 70, each = 40, width = 9;
  CaseArray starts = whole({0}), places = whole({}), values = sample({rows * each}, 1);
  CaseArray b = sample({transpose ? rows : columns, width}, 2);
  CaseArray y{{transpose ? columns : rows, width}, {}};
  y.values.resize(static_cast<std::size_t>(y.shape.size()));
  for (std::int64_t i = 0; i < rows * each; ++i) {
    const std::int64_t row = i / each, column = i * 37 % columns;
    places.values.push_back(static_cast<double>(column));
    if ((i + 1) % each == 0) starts.values.push_back(static_cast<double>(i + 1));
    for (std::int64_t k = 0; k < width; ++k)
      y.values[static_cast<std::size_t>((transpose ? column : row) * width + k)] +=
          values.values[static_cast<std::size_t>(i)] *
          b.values[static_cast<std::size_t>((transpose ? row : column) * width + k)];
  }
  starts.shape = {rows + 1};
  places.shape = {rows * each};
  return {.name = transpose ? "many, transposed" : "many",
          .inputs = {starts, places, values, b},
          .attributes = of_shape({rows, columns}, transpose),
          .expected = {y},
          .tolerance = 30};
}

const RegisterCases kCsrMatmul(
    "csr_matmul",
    {{.name = "by hand",
      .inputs = {kStarts, kColumns, kValues, kB},
      .attributes = of_shape({3, 3}),
      .expected = {array({3, 2}, {13, 16, 0, 0, 23, 30})}},
     {.name = "transposed",
      .inputs = {kStarts, kColumns, kValues, kB},
      .attributes = of_shape({3, 3}, true),
      .expected = {array({3, 2}, {15, 18, 1, 2, 22, 28})}},
     {.name = "elements of one place add up",
      .inputs = {whole({0, 3}), whole({1, 0, 1}), array({3}, {1, 2, 4}), array({2, 1}, {10, 100})},
      .attributes = of_shape({1, 2}),
      .expected = {array({1, 1}, {520})}},
     {.name = "no elements",
      .inputs = {whole({0, 0, 0}), whole({}), array({0}, {}), array({3, 2}, {1, 2, 3, 4, 5, 6})},
      .attributes = of_shape({2, 3}),
      .expected = {array({2, 2}, {0, 0, 0, 0})},
      .gradient = false},
     {.name = "no rows",
      .inputs = {whole({0}), whole({}), array({0}, {}), array({3, 2}, {1, 2, 3, 4, 5, 6})},
      .attributes = of_shape({0, 3}),
      .expected = {array({0, 2}, {})},
      .gradient = false},
     many(false),
     many(true)},
    {{"expected (rows, columns)", {kStarts, kColumns, kValues, kB}},
     {"starts is int64 (4,)", {kStarts, kColumns, kValues, kB}, of_shape({2, 3})},
     {"b is float64 (3, 2)", {kStarts, kColumns, kValues, kB}, of_shape({3, 4})},
     {"column 3 (number 0) is outside [0, 3)", {kStarts, whole({3, 2, 0, 2}), kValues, kB}, of_shape({3, 3})},
     {"starts fall from 3 to 2 behind row 1", {whole({0, 3, 2, 4}), kColumns, kValues, kB}, of_shape({3, 3})},
     {"starts go from 0 to 3, expected 0 to 4", {whole({0, 2, 2, 3}), kColumns, kValues, kB}, of_shape({3, 3})}});

const RegisterCases kBackward(
    "csr_matmul_backward_values", {},
    {{"gradient is float64 (2, 2)", {kStarts, kColumns, sample({2, 2}, 1), kB}, of_shape({3, 3})}});

}  // namespace
}  // namespace paceline::test
