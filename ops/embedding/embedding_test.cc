#include <paceline/ops.h>
#include <support/operator_case.h>

namespace paceline::test {
namespace {

const CaseArray kTable = array({3, 2}, {1, 2, 3, 4, 5, 6});

const RegisterCases kEmbedding(
    "embedding",
    {{.name = "rows, one repeated",
      .inputs = {typed(DType::kInt32, {4}, {2, 0, 2, 1}), kTable},
      .expected = {array({4, 2}, {5, 6, 1, 2, 5, 6, 3, 4})}},
     {.name = "2-d ids",
      .inputs = {typed(DType::kInt64, {1, 2}, {1, 1}), kTable},
      .expected = {array({1, 2, 2}, {3, 4, 3, 4})}},
     {.name = "sparse gradient",
      .inputs = {typed(DType::kInt64, {2, 2}, {1, 0, 1, 1}), kTable},
      .attributes = with(EmbeddingAttributes{true}),
      .expected = {array({2, 2, 2}, {3, 4, 1, 2, 3, 4, 3, 4})}},
     {.name = "rows of two axes", .inputs = {typed(DType::kInt32, {3}, {4, 0, 4}), sample({5, 2, 3}, 1)}},
     {.name = "scalar id", .inputs = {typed(DType::kInt32, {}, {2}), kTable}, .expected = {array({2}, {5, 6})}},
     {.name = "no ids",
      .inputs = {typed(DType::kInt32, {0}, {}), kTable},
      .expected = {array({0, 2}, {})},
      .gradient = false}},
    {{"id 3 at position 1 is outside [0, 3)", {typed(DType::kInt32, {2}, {0, 3}), kTable}},
     {"id -1 at position 0", {typed(DType::kInt64, {1}, {-1}), kTable}},
     {"ids is float64, expected int32 or int64", {array({1}, {0}), kTable}},
     {"weight has 0 dimensions", {typed(DType::kInt32, {1}, {0}), array({}, {1})}}});

}  // namespace
}  // namespace paceline::test
