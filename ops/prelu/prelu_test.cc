#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

namespace paceline::test {
namespace {

const RegisterCases kPrelu("prelu",
                           {{.name = "one slope",
                             .inputs = {array({4}, {-2, -1, 1, 2}), array({}, {0.25})},
                             .expected = {array({4}, {-0.5, -0.25, 1, 2})}},
                            {.name = "slopes of channels",
                             .inputs = {array({1, 2, 2}, {-1, 1, -1, -2}), array({2, 1}, {0.5, 2})},
                             .expected = {array({1, 2, 2}, {-0.5, 1, -2, -4})}},
                            {.name = "empty",
                             .inputs = {sample({0, 2}, 1), array({}, {0.5})},
                             .expected = {array({0, 2}, {})},
                             .gradient = false}},
                           {{"does not repeat to (2,)", {sample({2}, 1), sample({3, 2}, 1)}},
                            {"expected one floating type", {sample({2}, 1), typed(DType::kFloat32, {}, {1})}}});

TEST(Prelu, RefusesASlopeOfAnotherSize) {
  EXPECT_THROW(prelu(NDArray::zeros({2, 3}), NDArray::zeros({2})), InvalidArgument);
  EXPECT_EQ(prelu(NDArray::full({2, 3, 1}, -1), NDArray::from<float>({1, 2, 3}, {3})).to_vector<float>(),
            (std::vector<float>{-1, -2, -3, -1, -2, -3}));
}

}  // namespace
}  // namespace paceline::test
