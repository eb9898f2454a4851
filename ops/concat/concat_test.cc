#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

namespace paceline::test {
namespace {

const RegisterCases kConcat("concat",
                            {{.name = "rows",
                              .inputs = {array({1, 2}, {1, 2}), array({2, 2}, {3, 4, 5, 6})},
                              .attributes = with(ConcatAttributes{0}),
                              .expected = {array({3, 2}, {1, 2, 3, 4, 5, 6})}},
                             {.name = "columns",
                              .inputs = {array({2, 1}, {1, 2}), array({2, 2}, {3, 4, 5, 6}), array({2, 0}, {})},
                              .attributes = with(ConcatAttributes{-1}),
                              .expected = {array({2, 3}, {1, 3, 4, 2, 5, 6})}},
                             {.name = "one",
                              .inputs = {sample({2, 3}, 1)},
                              .attributes = with(ConcatAttributes{0}),
                              .expected = {sample({2, 3}, 1)}}},
                            {{"cannot join", {sample({2, 3}, 1), sample({2, 4}, 1)}, with(ConcatAttributes{0})},
                             {"cannot join", {sample({2, 3}, 1), sample({2}, 1)}, with(ConcatAttributes{0})},
                             {"no arrays, expected at least one", {}, with(ConcatAttributes{0})}});

TEST(Concat, StackMakesANewAxis) {
  const NDArray a = NDArray::from<float>({1, 2}, {2});
  const NDArray b = NDArray::from<float>({3, 4}, {2});
  EXPECT_EQ(stack({a, b}).to_vector<float>(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(stack({a, b}, -1).to_vector<float>(), (std::vector<float>{1, 3, 2, 4}));
}

}  // namespace
}  // namespace paceline::test
