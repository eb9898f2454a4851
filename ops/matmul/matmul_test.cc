#include <paceline/ops.h>
#include <support/operator_case.h>

namespace paceline::test {
namespace {

const CaseArray kA = array({2, 3}, {1, 2, 3, 4, 5, 6});
const CaseArray kTransposedA = array({3, 2}, {1, 4, 2, 5, 3, 6});
const CaseArray kB = array({3, 2}, {7, 8, 9, 10, 11, 12});
const CaseArray kTransposedB = array({2, 3}, {7, 9, 11, 8, 10, 12});
const CaseArray kProduct = array({2, 2}, {58, 64, 139, 154});

OperatorCase random_case(const std::string& name, const Shape& a, const Shape& b, bool ta = false, bool tb = false) {
  return {.name = name,
          .inputs = {sample(a, 1), sample(b, 2)},
          .attributes = with(MatmulAttributes{ta, tb}),
          .tolerance = 4};
}

const RegisterCases kMatmul("matmul",
                            {{.name = "plain", .inputs = {kA, kB}, .expected = {kProduct}},
                             {.name = "a transposed",
                              .inputs = {kTransposedA, kB},
                              .attributes = with(MatmulAttributes{true, false}),
                              .expected = {kProduct}},
                             {.name = "b transposed",
                              .inputs = {kA, kTransposedB},
                              .attributes = with(MatmulAttributes{false, true}),
                              .expected = {kProduct}},
                             {.name = "both transposed",
                              .inputs = {kTransposedA, kTransposedB},
                              .attributes = with(MatmulAttributes{true, true}),
                              .expected = {kProduct}},
                             {.name = "shared right side",
                              .inputs = {array({2, 1, 3}, {1, 2, 3, 4, 5, 6}), kB},
                              .expected = {array({2, 1, 2}, {58, 64, 139, 154})}},
                             {.name = "empty sum",
                              .inputs = {array({2, 0}, {}), array({0, 2}, {})},
                              .expected = {array({2, 2}, {0, 0, 0, 0})},
                              .gradient = false},
                             random_case("batch", {2, 3, 4}, {2, 4, 5}),
                             random_case("batch transposed", {2, 4, 3}, {2, 5, 4}, true, true),
                             random_case("batch a transposed", {2, 4, 3}, {2, 4, 5}, true),
                             random_case("batch b transposed", {2, 3, 4}, {2, 5, 4}, false, true),
                             random_case("four axes", {2, 2, 3, 4}, {5, 4}, false, true),
                             random_case("one row", {1, 70}, {70, 3})},
                            {{"(2, 3)", {kA, kA}},
                             {"dimensions", {sample({3}, 1), kB}},
                             {"cast one of them", {kA, typed(DType::kInt32, {3, 2}, {1, 2, 3, 4, 5, 6})}},
                             {"expected a floating type",
                              {typed(DType::kInt32, {1, 1}, {1}), typed(DType::kInt32, {1, 1}, {1})}}});

}  // namespace
}  // namespace paceline::test
