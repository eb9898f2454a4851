#include <paceline/ops.h>
#include <support/operator_case.h>

#include <gtest/gtest.h>

#include <numeric>

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

TEST(Matmul, VectorsAreRowsAndColumns) {
  const auto numbers = [](const Shape& shape) {
    std::vector<float> values(static_cast<std::size_t>(shape.size()));
    std::iota(values.begin(), values.end(), 1);
    return NDArray::from(values, shape);
  };
  const NDArray v = numbers({3}), m = numbers({3, 2}), three = numbers({2, 3, 2});
  EXPECT_EQ(matmul(v, v).shape(), Shape());
  EXPECT_EQ(matmul(v, v).item<float>(), 14);
  EXPECT_EQ(matmul(v, m).to_vector<float>(), (std::vector<float>{22, 28}));
  EXPECT_EQ(matmul(m, v, true).to_vector<float>(), (std::vector<float>{22, 28}));
  EXPECT_EQ(matmul(v, three).shape(), (Shape{2, 2}));
  EXPECT_EQ(matmul(v, three).to_vector<float>(), (std::vector<float>{22, 28, 58, 64}));
  EXPECT_EQ(matmul(three, numbers({2})).to_vector<float>(), (std::vector<float>{5, 11, 17, 23, 29, 35}));
  EXPECT_EQ(matmul(three, numbers({2})).shape(), (Shape{2, 3}));
  EXPECT_EQ(matmul(three, v, true).to_vector<float>(), (std::vector<float>{22, 28, 58, 64}));
  EXPECT_EQ(matmul(NDArray::zeros({0}), NDArray::zeros({0, 2})).to_vector<float>(), (std::vector<float>{0, 0}));
  EXPECT_THROW(matmul(v, m, true), InvalidArgument);
}

}  // namespace
}  // namespace paceline::test
