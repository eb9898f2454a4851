#include <paceline/ops.h>
#include <support/operator_case.h>

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
     {.name = "middle of three",
      .inputs = {sample({2, 3, 2}, 1), places({4}, {2, 0, 2, 1})},
      .attributes = with(TakeAttributes{1})},
     {.name = "sparse gradient",
      .inputs = {kX, places({2, 2}, {2, 0, 2, 1})},
      .attributes = with(TakeAttributes{.sparse_gradient = true}),
      .expected = {array({2, 2, 2}, {5, 6, 1, 2, 5, 6, 3, 4})}},
     {.name = "nothing", .inputs = {kX, places({0}, {})}, .expected = {array({0, 2}, {})}, .gradient = false}},
    {{"position 3", {kX, places({1}, {3})}},
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

}  // namespace
}  // namespace paceline::test
