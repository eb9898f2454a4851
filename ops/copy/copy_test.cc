#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

namespace paceline::test {
namespace {

const RegisterCases kCopy(
    "copy", {{.name = "2-d", .inputs = {sample({2, 3}, 1)}, .expected = {sample({2, 3}, 1)}},
             {.name = "empty", .inputs = {sample({0}, 2)}, .expected = {sample({0}, 2)}, .gradient = false}});

const RegisterCases kChannelsLast(
    "channels_last",
    {{.name = "images", .inputs = {sample({2, 3, 4, 5}, 1)}, .expected = {sample({2, 3, 4, 5}, 1)}},
     {.name = "one place", .inputs = {sample({2, 3, 1}, 2)}, .expected = {sample({2, 3, 1}, 2)}},
     {.name = "none", .inputs = {sample({0, 3, 2}, 3)}, .expected = {sample({0, 3, 2}, 3)}, .gradient = false}},
    {{"expected (n, channels, sizes...)", {sample({2, 3}, 1)}}});

const RegisterCases kCast("cast", {{.name = "to float64",
                                    .inputs = {sample({3}, 1)},
                                    .attributes = with(CastAttributes{DType::kFloat64}),
                                    .expected = {typed(DType::kFloat64, {3}, sample({3}, 1).values)}},
                                   {.name = "to int32",
                                    .inputs = {array({4}, {-1.75, 0, 2.5, 1})},
                                    .attributes = with(CastAttributes{DType::kInt32}),
                                    .expected = {typed(DType::kInt32, {4}, {-1, 0, 2, 1})},
                                    .gradient = false},
                                   {.name = "from int64",
                                    .inputs = {typed(DType::kInt64, {2}, {7, -9})},
                                    .attributes = with(CastAttributes{DType::kFloat64}),
                                    .expected = {typed(DType::kFloat64, {2}, {7, -9})},
                                    .gradient = false}});

const RegisterCases kBroadcast("broadcast_to",
                               {{.name = "column",
                                 .inputs = {array({2, 1}, {1, 2})},
                                 .attributes = with(BroadcastToAttributes{{3, 2, 2}}),
                                 .expected = {array({3, 2, 2}, {1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2})}},
                                {.name = "scalar",
                                 .inputs = {array({}, {5})},
                                 .attributes = with(BroadcastToAttributes{{2}}),
                                 .expected = {array({2}, {5, 5})}},
                                {.name = "same",
                                 .inputs = {sample({2, 3}, 3)},
                                 .attributes = with(BroadcastToAttributes{{2, 3}}),
                                 .expected = {sample({2, 3}, 3)}}},
                               {{"does not repeat to (2, 4)", {sample({2, 3}, 1)}, with(BroadcastToAttributes{{2, 4}})},
                                {"does not repeat to (3,)", {sample({2, 3}, 1)}, with(BroadcastToAttributes{{3}})}});

TEST(Copy, RefusesHugeRepetitions) {
  const NDArray x = NDArray::zeros({4});
  EXPECT_THROW(tile(x, {std::int64_t{1} << 62}), InvalidArgument);
  EXPECT_THROW(repeat(x, std::int64_t{1} << 62, 0), InvalidArgument);
}

TEST(Copy, OwnsItsMemory) {
  const NDArray x = NDArray::full({2}, 1);
  const NDArray y = copy(x);
  EXPECT_FALSE(y.shares_memory_with(x));
}

}  // namespace
}  // namespace paceline::test
