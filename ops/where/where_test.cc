#include <paceline/ops.h>
#include <support/operator_case.h>

#include <limits>

namespace paceline::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

CaseArray bits(const Shape& shape, std::vector<double> values) { return typed(DType::kBool, shape, std::move(values)); }

const RegisterCases kWhere("where",
                           {{.name = "vectors",
                             .inputs = {bits({3}, {1, 0, 1}), array({3}, {1, 2, 3}), array({3}, {4, 5, 6})},
                             .expected = {array({3}, {1, 5, 3})}},
                            {.name = "broadcast",
                             .inputs = {bits({2, 1}, {1, 0}), array({3}, {1, 2, 3}), array({}, {9})},
                             .expected = {array({2, 3}, {1, 2, 3, 9, 9, 9})}},
                            {.name = "integers",
                             .inputs = {bits({2}, {0, 1}), typed(DType::kInt64, {2}, {1, 2}),
                                        typed(DType::kInt64, {2}, {3, 4})},
                             .expected = {typed(DType::kInt64, {2}, {3, 2})},
                             .gradient = false},
                            {.name = "NaN on the other side",
                             .inputs = {bits({2}, {1, 0}), array({2}, {1, kNaN}), array({2}, {kNaN, 2})},
                             .expected = {array({2}, {1, 2})},
                             .gradient = false},
                            {.name = "empty",
                             .inputs = {bits({0, 2}, {}), sample({0, 2}, 1), sample({2}, 2)},
                             .expected = {array({0, 2}, {})},
                             .gradient = false}},
                           {{"condition is float64 (1,)", {array({1}, {1}), array({1}, {1}), array({1}, {1})}},
                            {"cast one of them", {bits({1}, {1}), array({1}, {1}), typed(DType::kInt32, {1}, {1})}}});

}  // namespace
}  // namespace paceline::test
