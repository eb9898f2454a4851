#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <limits>

namespace paceline::test {
namespace {

const RegisterCases kTriangle(
    "triangle",
    {{.name = "lower", .inputs = {array({2, 3}, {1, 2, 3, 4, 5, 6})}, .expected = {array({2, 3}, {1, 0, 0, 4, 5, 0})}},
     {.name = "upper, batches",
      .inputs = {array({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8})},
      .attributes = with(TriangleAttributes{true, 0}),
      .expected = {array({2, 2, 2}, {1, 2, 0, 4, 5, 6, 0, 8})}},
     {.name = "beside the diagonal",
      .inputs = {array({3, 2}, {1, 2, 3, 4, 5, 6})},
      .attributes = with(TriangleAttributes{true, -1}),
      .expected = {array({3, 2}, {1, 2, 3, 4, 0, 6})}},
     {.name = "all",
      .inputs = {array({2, 2}, {1, 2, 3, 4})},
      .attributes = with(TriangleAttributes{false, std::numeric_limits<std::int64_t>::max()}),
      .expected = {array({2, 2}, {1, 2, 3, 4})}},
     {.name = "far below",
      .inputs = {typed(DType::kInt64, {2, 2}, {1, 2, 3, 4})},
      .attributes = with(TriangleAttributes{false, -7}),
      .expected = {typed(DType::kInt64, {2, 2}, {0, 0, 0, 0})},
      .gradient = false},
     {.name = "large", .inputs = {sample({3, 70, 90}, 1)}},
     {.name = "empty", .inputs = {array({0, 3}, {})}, .expected = {array({0, 3}, {})}, .gradient = false}},
    {{"expected at least two axes", {array({2}, {1, 2})}}});

// Diagonals from 2 on, so that errors do not grow; 50 where it is not to be read.
CaseArray triangular(std::int64_t batches, std::int64_t size, bool upper, bool unit = false) {
  CaseArray a = sample({batches, size, size}, 7, -1, 1);
  for (std::int64_t i = 0; i < a.shape.size(); ++i) {
    double& value = a.values[static_cast<std::size_t>(i)];
    const std::int64_t right = i % size - i / size % size;
    if (right == 0)
      value = unit ? 50 : 3 + value;
    else if ((right > 0) != upper)
      value = 50;
    else
      value /= static_cast<double>(size);
  }
  return a;
}

const RegisterCases kTriangularSolve(
    "triangular_solve",
    {{.name = "lower",
      .inputs = {array({2, 2}, {2, 9, 1, 4}), array({2, 1}, {2, 9})},
      .expected = {array({2, 1}, {1, 2})}},
     {.name = "upper, unit diagonal",
      .inputs = {array({2, 2}, {7, 3, 7, 7}), array({2, 2}, {7, 5, 2, 1})},
      .attributes = with(TriangularSolveAttributes{true, false, true}),
      .expected = {array({2, 2}, {1, 2, 2, 1})}},
     {.name = "lower, transposed",
      .inputs = {array({2, 2}, {2, 9, 1, 4}), array({2, 1}, {4, 8})},
      .attributes = with(TriangularSolveAttributes{.transpose = true}),
      .expected = {array({2, 1}, {1, 2})}},
     {.name = "batches", .inputs = {triangular(3, 9, false), sample({3, 9, 4}, 2)}, .tolerance = 4},
     {.name = "upper, transposed, unit diagonal",
      .inputs = {triangular(2, 9, true, true), sample({2, 9, 35}, 2)},
      .attributes = with(TriangularSolveAttributes{true, true, true}),
      .tolerance = 4},
     {.name = "many rows",
      .inputs = {triangular(1, 70, false), sample({1, 70, 3}, 2)},
      .gradient = false,
      .tolerance = 4},
     {.name = "no columns",
      .inputs = {array({1, 1}, {2}), array({1, 0}, {})},
      .expected = {array({1, 0}, {})},
      .gradient = false}},
    {{"expected one floating type", {typed(DType::kInt32, {1, 1}, {1}), typed(DType::kInt32, {1, 1}, {1})}},
     {"expected as many axes, at least two", {array({1, 1}, {1}), array({1}, {1})}},
     {"expected (..., n, n) and (..., n, k)", {array({2, 2}, {1, 1, 1, 1}), array({1, 2}, {1, 1})}},
     {"expected the same leading axes", {array({1, 1, 1}, {1}), array({2, 1, 1}, {1, 1})}}});

TEST(Triangular, SolvesWhatItMultiplied) {
  const NDArray a = to_array(triangular(2, 40, true), DType::kFloat64, Device(), default_engine());
  const NDArray x = to_array(sample({2, 40, 3}, 5), DType::kFloat64, Device(), default_engine());
  for (const bool transpose : {false, true}) {
    const NDArray b = batch_matmul(triu(a), x, transpose);
    const auto solved = triangular_solve(a, b, {.upper = true, .transpose = transpose}).to_vector<double>();
    const auto expected = x.to_vector<double>();
    for (std::size_t i = 0; i < solved.size(); ++i) ASSERT_NEAR(solved[i], expected[i], 1e-12);
  }
}

}  // namespace
}  // namespace paceline::test
