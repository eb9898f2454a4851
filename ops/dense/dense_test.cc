#include <paceline/ops.h>
#include <support/operator_case.h>

#include <limits>

namespace paceline::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
const CaseArray kWeight = array({2, 3}, {1, 0, -1, 2, 1, 0});

OperatorCase random_case(const std::string& name, const Shape& x, const Shape& weight, bool biased, bool flatten) {
  return {.name = name,
          .inputs = {sample(x, 1), sample(weight, 2), biased ? sample({weight[0]}, 3) : no_array()},
          .attributes = with(DenseAttributes{flatten}),
          .tolerance = 4};
}

const RegisterCases kDense("dense",
                           {{.name = "with bias",
                             .inputs = {array({2, 3}, {1, 2, 3, 4, 5, 6}), kWeight, array({2}, {10, 20})},
                             .expected = {array({2, 2}, {8, 24, 8, 33})}},
                            {.name = "without bias",
                             .inputs = {array({1, 3}, {1, 2, 3}), kWeight, no_array()},
                             .expected = {array({1, 2}, {-2, 4})}},
                            {.name = "no examples",
                             .inputs = {array({0, 3}, {}), kWeight, array({2}, {1, 2})},
                             .expected = {array({0, 2}, {})},
                             .gradient = false},
                            random_case("flattened", {4, 2, 3}, {5, 6}, true, true),
                            random_case("last axis", {4, 2, 3}, {5, 3}, true, false),
                            random_case("last axis, no bias", {2, 2, 2, 3}, {5, 3}, false, false),
                            random_case("larger", {33, 70}, {41, 70}, true, true)},
                           {{"weight has 3 dimensions, expected 2",
                             {sample({2, 3}, 1), sample({1, 2, 3}, 1), no_array()}},
                            {"weight has shape (2, 3), expected (any, 4)", {sample({2, 4}, 1), kWeight, no_array()}},
                            {"bias is", {sample({2, 3}, 1), kWeight, sample({3}, 1)}},
                            {"got 2 inputs, expected 3", {sample({2, 3}, 1), kWeight}},
                            {"weight is none", {sample({2, 3}, 1), no_array(), no_array()}}});

// Far enough from the kink of relu for every type.
OperatorCase far_from_0(const std::string& name, const Shape& x, const Shape& weight, bool flatten) {
  OperatorCase result = random_case(name, x, weight, true, flatten);
  result.inputs[2] = mapped(result.inputs[2], [](double value) { return value < 0 ? -40.0 : 40.0; });
  return result;
}

const RegisterCases kDenseRelu(
    "dense_relu",
    {{.name = "with bias",
      .inputs = {array({2, 3}, {1, 2, 3, 4, 5, 6}), kWeight, array({2}, {1, -5})},
      .expected = {array({2, 2}, {0, 0, 0, 8})}},
     {.name = "without bias",
      .inputs = {array({1, 3}, {1, 2, 3}), kWeight, no_array()},
      .expected = {array({1, 2}, {0, 4})}},
     {.name = "no examples",
      .inputs = {array({0, 3}, {}), kWeight, array({2}, {1, 2})},
      .expected = {array({0, 2}, {})},
      .gradient = false},
     {.name = "not finite",
      .inputs = {array({2, 2}, {kInfinity, 1, 1, 2}), array({2, 2}, {1, 0, 0, 1}), array({2}, {1, -5})},
      .expected = {array({2, 2}, {kInfinity, kNaN, 2, 0})},
      .gradient = false},
     far_from_0("flattened", {4, 2, 3}, {5, 6}, true),
     far_from_0("last axis", {4, 2, 4}, {6, 4}, false)},
    {{"weight has 3 dimensions, expected 2", {sample({2, 3}, 1), sample({1, 2, 3}, 1), no_array()}}});

const RegisterCases kDenseGeluTanh("dense_gelu_tanh",
                                   {{.name = "with bias",
                                     .inputs = {array({1, 3}, {1, 2, 3}), kWeight, array({2}, {1, -4})},
                                     .expected = {array({1, 2}, {-0.15880800939172324, 0})}},
                                    random_case("without bias", {4, 2, 3}, {5, 6}, false, true),
                                    random_case("last axis", {4, 2, 4}, {6, 4}, true, false),
                                    random_case("larger", {33, 70}, {42, 70}, true, true)},
                                   {{"weight has 3 dimensions, expected 2",
                                     {sample({2, 3}, 1), sample({1, 2, 3}, 1), no_array()}}});

}  // namespace
}  // namespace paceline::test
