#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gmock/gmock.h>

namespace paceline::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

OperatorCase to(const std::string& name, const Shape& from, const Shape& codes, const Shape& result) {
  CaseArray expected = sample(from, 1);
  expected.shape = result;
  return {.name = name,
          .inputs = {sample(from, 1)},
          .attributes = with(ReshapeAttributes{codes}),
          .expected = {expected},
          .gradient = from.size() > 0};
}

RejectedCall refused(const std::string& message, const Shape& from, const Shape& codes) {
  return {message, {sample(from, 1)}, with(ReshapeAttributes{codes})};
}

const RegisterCases kReshape("reshape",
                             {to("sizes", {2, 6}, {3, 4}, {3, 4}), to("left over", {2, 3, 4}, {-1, 4}, {6, 4}),
                              to("kept", {2, 3, 4}, {0, -1}, {2, 12}), to("rest", {2, 3, 4}, {0, -2}, {2, 3, 4}),
                              to("to scalar", {1, 1}, {}, {}), to("from scalar", {}, {1}, {1}),
                              to("empty", {0, 3}, {0, 1, 3}, {0, 1, 3})},
                             {refused("(2, 3)", {2, 3}, {4, 2}), refused("occurs twice", {2, 3}, {-1, -1}),
                              refused("code 0 at place 2", {2, 3}, {2, 3, 0}), refused("unknown code -7", {2, 3}, {-7}),
                              refused("does not fit", {2, 3}, {4, -1})});

TEST(Reshape, SharesTheMemoryOfContiguousArrays) {
  const NDArray x = NDArray::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_TRUE(reshape(x, {3, 2}).shares_memory_with(x));
  const NDArray turned = reshape(transpose(x), {-1});
  EXPECT_FALSE(turned.shares_memory_with(x));
  EXPECT_EQ(turned.to_vector<float>(), (std::vector<float>{1, 4, 2, 5, 3, 6}));
}

TEST(Reshape, FlattenExpandAndSqueeze) {
  EXPECT_EQ(flatten(NDArray({2, 3, 4})).shape(), (Shape{2, 12}));
  EXPECT_EQ(flatten(NDArray({5})).shape(), (Shape{5, 1}));
  EXPECT_EQ(flatten(NDArray({0, 3, 2})).shape(), (Shape{0, 6}));
  EXPECT_EQ(flatten(NDArray({2, 3, 0})).shape(), (Shape{2, 0}));
  EXPECT_EQ(expand_dims(NDArray({2, 3}), 1).shape(), (Shape{2, 1, 3}));
  EXPECT_EQ(expand_dims(NDArray({2, 3}), -1).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(squeeze(NDArray({2, 1, 3}), -2).shape(), (Shape{2, 3}));
  EXPECT_THROW(squeeze(NDArray({2, 3}), 0), InvalidArgument);
  EXPECT_THROW(flatten(NDArray(Shape{})), InvalidArgument);
}

TEST(Reshape, RefusalsSayWhatWasGiven) {
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  const NDArray x({2, 3});
  const std::string given = x.describe();
  EXPECT_THAT(refusal([&] { squeeze(x, 2); }), AllOf(HasSubstr("[squeeze] axis is 2"), HasSubstr(given)));
  EXPECT_THAT(refusal([&] { expand_dims(x, -4); }), AllOf(HasSubstr("[expand_dims] axis is -4"), HasSubstr(given)));
  EXPECT_THAT(refusal([&] { clip(x, 2, 1); }), AllOf(HasSubstr("[clip] low is 2"), HasSubstr(given)));
  EXPECT_THAT(refusal([&] { einsum("ij", {x}); }), AllOf(HasSubstr("[einsum] 'ij' has no ->"), HasSubstr(given)));
  EXPECT_THAT(refusal([&] { einsum("...ijk->k", {x}); }), HasSubstr("operand 0 is float32 (2, 3)"));
  EXPECT_THAT(refusal([&] { einsum("...i...->i", {x}); }), HasSubstr("an ellipsis occurs twice"));
  EXPECT_THAT(refusal([&] { einsum("..ij->i", {x}); }), HasSubstr("'.' in '..ij->i', expected letters, ellipses"));
  EXPECT_THAT(refusal([&] {
                einsum("...,...->...", {x, NDArray({3, 3})});
              }),
              HasSubstr("an axis of the ellipses has size 2 and 3"));
  EXPECT_THAT(refusal([&] { flatten(NDArray(Shape{})); }), HasSubstr("[flatten] x is float32 ()"));
}

}  // namespace
}  // namespace paceline::test
