#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

namespace paceline::test {
namespace {

CaseArray places(const Shape& shape, std::vector<double> values, DType dtype = DType::kInt64) {
  return typed(dtype, shape, std::move(values));
}

const CaseArray kX = array({3, 2}, {1, 2, 3, 4, 5, 6});

const RegisterCases kGather(
    "gather",
    {{.name = "rows", .inputs = {kX, places({2, 2}, {2, 0, 2, 1})}, .expected = {array({2, 2}, {5, 2, 5, 4})}},
     {.name = "columns, smaller",
      .inputs = {kX, places({2, 3}, {1, 1, 0, 0, 1, 0}, DType::kInt32)},
      .attributes = with(IndexAttributes{-1}),
      .expected = {array({2, 3}, {2, 2, 1, 3, 4, 3})}},
     {.name = "middle of three",
      .inputs = {sample({2, 3, 2}, 1), places({2, 1, 2}, {0, 2, 1, 1})},
      .attributes = with(IndexAttributes{1})},
     {.name = "nothing", .inputs = {kX, places({0, 2}, {})}, .expected = {array({0, 2}, {})}, .gradient = false}},
    {{"position 3 (number 1) is outside [0, 3)", {kX, places({1, 2}, {0, 3})}},
     {"positions is float64", {kX, array({1, 2}, {0, 0})}},
     {"does not lie inside x", {kX, places({1, 3}, {0, 0, 0})}}});

const RegisterCases kScatterAdd(
    "scatter_add",
    {{.name = "rows that repeat",
      .inputs = {kX, places({3, 1}, {2, 0, 2}), array({3, 1}, {10, 20, 30})},
      .expected = {array({3, 2}, {21, 2, 3, 4, 45, 6})}},
     {.name = "columns",
      .inputs = {kX, places({1, 2}, {1, 1}, DType::kInt32), array({1, 2}, {0.5, 0.25})},
      .attributes = with(IndexAttributes{1}),
      .expected = {array({3, 2}, {1, 2.75, 3, 4, 5, 6})}},
     {.name = "integers wrap",
      .inputs = {typed(DType::kInt32, {1}, {0x1p31 - 1}), places({1}, {0}), typed(DType::kInt32, {1}, {1})},
      .expected = {typed(DType::kInt32, {1}, {-0x1p31})},
      .gradient = false},
     {.name = "nothing", .inputs = {kX, places({0, 2}, {}), array({0, 2}, {})}, .expected = {kX}, .gradient = false}},
    {{"position -1 (number 0)", {kX, places({1, 1}, {-1}), array({1, 1}, {1})}},
     {"values is float64 (2, 1)", {kX, places({1, 1}, {1}), array({2, 1}, {1, 1})}}});

const RegisterCases kTake(
    "take",
    {{.name = "rows",
      .inputs = {kX, places({2, 2}, {2, 0, 2, 1})},
      .expected = {array({2, 2, 2}, {5, 6, 1, 2, 5, 6, 3, 4})}},
     {.name = "columns",
      .inputs = {kX, places({3}, {1, 1, 0}, DType::kInt32)},
      .attributes = with(TakeAttributes{1}),
      .expected = {array({3, 3}, {2, 2, 1, 4, 4, 3, 6, 6, 5})}},
     {.name = "one", .inputs = {kX, places({}, {1})}, .expected = {array({2}, {3, 4})}},
     {.name = "from the back",
      .inputs = {kX, places({3}, {-1, 0, -3})},
      .expected = {array({3, 2}, {5, 6, 1, 2, 1, 2})}},
     {.name = "middle of three",
      .inputs = {sample({2, 3, 2}, 1), places({4}, {2, 0, 2, 1})},
      .attributes = with(TakeAttributes{1})},
     {.name = "sparse gradient",
      .inputs = {kX, places({2, 2}, {2, 0, 2, 1})},
      .attributes = with(TakeAttributes{.sparse_gradient = true}),
      .expected = {array({2, 2, 2}, {5, 6, 1, 2, 5, 6, 3, 4})}},
     {.name = "nothing", .inputs = {kX, places({0}, {})}, .expected = {array({0, 2}, {})}, .gradient = false}},
    {{"position 3 (number 0) is outside [-3, 3)", {kX, places({1}, {3})}},
     {"position -4", {kX, places({1}, {-4})}},
     {"positions is bool", {kX, typed(DType::kBool, {1}, {1})}},
     {"axis is 1 of x", {kX, places({1}, {0})}, with(TakeAttributes{1, true})}});

const RegisterCases kOneHot("one_hot",
                            {{.name = "vector",
                              .inputs = {places({3}, {1, 0, 2})},
                              .attributes = with(OneHotAttributes{3}),
                              .expected = {typed(DType::kFloat32, {3, 3}, {0, 1, 0, 1, 0, 0, 0, 0, 1})}},
                             {.name = "bool",
                              .inputs = {places({}, {1}, DType::kInt32)},
                              .attributes = with(OneHotAttributes{2, DType::kBool}),
                              .expected = {typed(DType::kBool, {2}, {0, 1})}},
                             {.name = "empty",
                              .inputs = {places({0}, {})},
                              .attributes = with(OneHotAttributes{2}),
                              .expected = {typed(DType::kFloat32, {0, 2}, {})}}},
                            {{"position 2", {places({1}, {2})}, with(OneHotAttributes{2})},
                             {"classes is 0", {places({1}, {0})}, with(OneHotAttributes{0})}});

const RegisterCases kFlatPositions(
    "flat_positions",
    {{.name = "two axes",
      .inputs = {places({2, 3}, {0, -1, 1, 2, 0, -3})},
      .attributes = with(FlatPositionsAttributes{{2, 3}}),
      .expected = {places({3}, {2, 3, 3})}}},
    {{"position 2 (number 0) is outside [-2, 2)", {places({2, 1}, {2, 0})}, with(FlatPositionsAttributes{{2, 3}})},
     {"expected 1 along axis 0", {places({2}, {0, 0})}, with(FlatPositionsAttributes{{2}})}});

TEST(Index, GatherNdTakesElementsAndRows) {
  const NDArray x = NDArray::from<float>({1, 2, 3, 4, 5, 6}, {3, 2});
  const NDArray elements = NDArray::from<std::int64_t>({2, 0, -1, 1, 0, -2}, {2, 3});
  EXPECT_EQ(gather_nd(x, elements).to_vector<float>(), (std::vector<float>{6, 1, 5}));
  const NDArray rows = gather_nd(x, NDArray::from<std::int64_t>({1, 1}, {1, 2}));
  EXPECT_EQ(rows.shape(), (Shape{2, 2}));
  EXPECT_EQ(rows.to_vector<float>(), (std::vector<float>{3, 4, 3, 4}));
  EXPECT_THROW(gather_nd(x, NDArray::zeros({3, 1}, DType::kInt64)), InvalidArgument);
}

TEST(Index, NonzeroAndMasks) {
  const NDArray x = NDArray::from<float>({0, 2, 3, 0, 0, 6}, {3, 2});
  EXPECT_EQ(nonzero(x).to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 1, 1, 0, 2, 1}));
  EXPECT_EQ(nonzero(NDArray::zeros({2, 0})).shape(), (Shape{0, 2}));
  EXPECT_EQ(nonzero(NDArray::full({}, 3)).shape(), (Shape{1, 0}));
  EXPECT_EQ(nonzero(NDArray::zeros({})).shape(), (Shape{0, 0}));
  const NDArray mask = greater(x, 2);
  EXPECT_EQ(masked_select(x, mask).to_vector<float>(), (std::vector<float>{3, 6}));
  EXPECT_EQ(masked_select(x, NDArray::from<bool>({true, false}, {2})).to_vector<float>(),
            (std::vector<float>{0, 3, 0}));
  EXPECT_EQ(masked_fill(x, mask, -1).to_vector<float>(), (std::vector<float>{0, 2, -1, 0, 0, -1}));
  EXPECT_EQ(masked_fill(x.cast(DType::kInt32), mask, 9).dtype(), DType::kInt32);
  EXPECT_THROW(masked_select(x, x), InvalidArgument);
}

}  // namespace
}  // namespace paceline::test
