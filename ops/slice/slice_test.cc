#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

namespace paceline::test {
namespace {

const CaseArray kSix = array({2, 3}, {1, 2, 3, 4, 5, 6});

const RegisterCases kSlice("slice",
                           {{.name = "rows",
                             .inputs = {kSix},
                             .attributes = with(SliceAttributes{0, 1, 2}),
                             .expected = {array({1, 3}, {4, 5, 6})}},
                            {.name = "columns",
                             .inputs = {kSix},
                             .attributes = with(SliceAttributes{1, 1}),
                             .expected = {array({2, 2}, {2, 3, 5, 6})}},
                            {.name = "from the back",
                             .inputs = {kSix},
                             .attributes = with(SliceAttributes{-1, -3, -1}),
                             .expected = {array({2, 2}, {1, 2, 4, 5})}},
                            {.name = "every other",
                             .inputs = {array({5}, {1, 2, 3, 4, 5})},
                             .attributes = with(SliceAttributes{0, 0, 5, 2}),
                             .expected = {array({3}, {1, 3, 5})}},
                            {.name = "every third column",
                             .inputs = {array({2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10})},
                             .attributes = with(SliceAttributes{1, 1, 5, 3}),
                             .expected = {array({2, 2}, {2, 5, 7, 10})}},
                            {.name = "nothing",
                             .inputs = {kSix},
                             .attributes = with(SliceAttributes{1, 2, 2}),
                             .expected = {array({2, 0}, {})}}},
                           {{"[slice] [2, 1)", {kSix}, with(SliceAttributes{1, 2, 1})},
                            {"[slice] [-4, ", {kSix}, with(SliceAttributes{1, -4, 1})},
                            {"the step is 0", {kSix}, with(SliceAttributes{0, 0, 1, 0})},
                            {"[slice]", {kSix}, with(SliceAttributes{2, 0, 1})}});

const RegisterCases kSplit(
    "split",
    {{.name = "columns",
      .inputs = {kSix},
      .attributes = with(SplitAttributes{-1, {2, 0, 1}}),
      .expected = {array({2, 2}, {1, 2, 4, 5}), array({2, 0}, {}), array({2, 1}, {3, 6})}},
     {.name = "one part", .inputs = {kSix}, .attributes = with(SplitAttributes{0, {2}}), .expected = {kSix}}},
    {{"[split] axis 1 of x of shape (2, 3) cannot be cut into (1, 1)", {kSix}, with(SplitAttributes{1, {1, 1}})},
     {"[split] axis 0 of x of shape (2, 3) cannot be cut into (3, -1)", {kSix}, with(SplitAttributes{0, {3, -1}})},
     {"[split]", {kSix}, with(SplitAttributes{2, {3}})}});

TEST(Slice, SplitGivesEqualParts) {
  const auto parts = split(NDArray::from<float>({1, 2, 3, 4}, {2, 2}), 2, 1);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].to_vector<float>(), (std::vector<float>{2, 4}));
  EXPECT_THROW(split(NDArray({3}), 2, 0), InvalidArgument);
}

}  // namespace
}  // namespace paceline::test
