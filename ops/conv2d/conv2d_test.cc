#include "conv2d/geometry.h"

#include <paceline/ops.h>
#include <support/operator_case.h>
#include <support/tolerance.h>

#include <gtest/gtest.h>

namespace paceline::test {
namespace {

// The definition, as seven loops: the oracle of oneDNN and of im2col.
CaseArray direct(const CaseArray& x, const CaseArray& weight, const CaseArray& bias,
                 const Conv2dAttributes& attributes) {
  const Conv2dGeometry g = make_geometry(x.shape, weight.shape, attributes);
  CaseArray y{{g.examples, g.out, g.result[0], g.result[1]}, {}};
  for (std::int64_t n = 0; n < g.examples; ++n)
    for (std::int64_t o = 0; o < g.out; ++o)
      for (std::int64_t oy = 0; oy < g.result[0]; ++oy)
        for (std::int64_t ox = 0; ox < g.result[1]; ++ox) {
          double total = bias.none ? 0 : bias.values[static_cast<std::size_t>(o)];
          for (std::int64_t c = 0; c < g.group_in(); ++c)
            for (std::int64_t ky = 0; ky < g.kernel[0]; ++ky)
              for (std::int64_t kx = 0; kx < g.kernel[1]; ++kx) {
                const std::int64_t iy = oy * g.stride[0] + ky * g.dilation[0] - g.padding[0];
                const std::int64_t ix = ox * g.stride[1] + kx * g.dilation[1] - g.padding[1];
                if (iy < 0 || iy >= g.size[0] || ix < 0 || ix >= g.size[1]) continue;
                const std::int64_t channel = o / g.group_out() * g.group_in() + c;
                const std::int64_t from = ((n * g.in + channel) * g.size[0] + iy) * g.size[1] + ix;
                const std::int64_t by = ((o * g.group_in() + c) * g.kernel[0] + ky) * g.kernel[1] + kx;
                total += x.values[static_cast<std::size_t>(from)] * weight.values[static_cast<std::size_t>(by)];
              }
          y.values.push_back(total);
        }
  return y;
}

OperatorCase conv(const std::string& name, const Shape& x, const Shape& weight, const Conv2dAttributes& attributes = {},
                  bool biased = true) {
  const CaseArray a = sample(x, 1), w = sample(weight, 2), b = biased ? sample({weight[0]}, 3) : no_array();
  return {.name = name,
          .inputs = {a, w, b},
          .attributes = with(attributes),
          .expected = {direct(a, w, b, attributes)},
          .gradient = x.size() > 0,
          .tolerance = 8};
}

const RegisterCases kConv2d(
    "conv2d",
    {{.name = "by hand",
      .inputs = {array({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), array({1, 1, 2, 2}, {1, 0, 0, -1}), array({1}, {10})},
      .expected = {array({1, 1, 1, 2}, {6, 6})}},
     conv("3x3", {2, 3, 5, 6}, {4, 3, 3, 3}),
     conv("no bias", {2, 3, 5, 6}, {4, 3, 3, 3}, {}, false),
     conv("padding", {1, 2, 4, 5}, {3, 2, 3, 3}, {.padding = {1, 2}}),
     conv("wide padding", {1, 1, 2, 2}, {2, 1, 3, 3}, {.padding = {3, 4}}),
     conv("stride", {2, 2, 7, 8}, {3, 2, 3, 2}, {.stride = {2, 3}}),
     conv("stride and padding", {1, 2, 6, 7}, {3, 2, 3, 3}, {.stride = {3, 2}, .padding = {2, 1}}),
     conv("dilation", {1, 2, 8, 9}, {2, 2, 3, 2}, {.dilation = {2, 3}}),
     conv("all at once", {2, 4, 9, 8}, {6, 2, 3, 3},
          {.stride = {2, 1}, .padding = {1, 2}, .dilation = {2, 2}, .groups = 2}),
     conv("depthwise", {2, 3, 5, 5}, {6, 1, 3, 3}, {.padding = {1, 1}, .groups = 3}),
     conv("1x1", {2, 5, 3, 4}, {7, 5, 1, 1}),
     conv("whole plane", {3, 2, 4, 5}, {3, 2, 4, 5}),
     conv("one element", {1, 1, 1, 1}, {1, 1, 1, 1}),
     conv("LeNet's first", {2, 1, 28, 28}, {6, 1, 5, 5}, {.padding = {2, 2}}),
     conv("LeNet's second", {2, 6, 14, 14}, {16, 6, 5, 5}),
     conv("17 channels", {2, 17, 6, 6}, {19, 17, 3, 3}, {.padding = {1, 1}}),
     conv("no examples", {0, 2, 4, 4}, {3, 2, 3, 3})},
    {{"weight has 3 dimensions, expected 4", {sample({1, 1, 4, 4}, 1), sample({1, 3, 3}, 2), no_array()}},
     {"x has 3 dimensions, expected 4", {sample({1, 4, 4}, 1), sample({1, 1, 3, 3}, 2), no_array()}},
     {"expected (any, 2, any, any)", {sample({1, 2, 4, 4}, 1), sample({1, 1, 3, 3}, 2), no_array()}},
     {"bias is", {sample({1, 1, 4, 4}, 1), sample({2, 1, 3, 3}, 2), sample({3}, 3)}},
     {"does not fit into the padded x", {sample({1, 1, 2, 4}, 1), sample({1, 1, 3, 3}, 2), no_array()}},
     {"2 groups do not divide",
      {sample({1, 3, 4, 4}, 1), sample({2, 1, 3, 3}, 2), no_array()},
      with(Conv2dAttributes{.groups = 2})},
     {"must be positive",
      {sample({1, 1, 4, 4}, 1), sample({1, 1, 3, 3}, 2), no_array()},
      with(Conv2dAttributes{.stride = {0, 1}})},
     {"expected a floating type",
      {typed(DType::kInt32, {1, 1, 1, 1}, {1}), typed(DType::kInt32, {1, 1, 1, 1}, {1}), no_array()}}});

// The catalogue's checks run float32 through oneDNN where it is built in; the other path must give the same.
TEST(Conv2d, GemmPathFollowsTheDefinitionInFloat32) {
  for (const OperatorCase& one : operator_cases()["conv2d"].cases) {
    SCOPED_TRACE(one.name);
    const auto& attributes =
        one.attributes ? *static_cast<const Conv2dAttributes*>(one.attributes.get()) : Conv2dAttributes{};
    const Conv2dGeometry geometry = make_geometry(one.inputs[0].shape, one.inputs[1].shape, attributes);
    const auto floats = [](const CaseArray& x) { return std::vector<float>(x.values.begin(), x.values.end()); };
    const std::vector<float> x = floats(one.inputs[0]), weight = floats(one.inputs[1]), bias = floats(one.inputs[2]);
    std::vector<float> y(one.expected[0].values.size());
    std::vector<std::max_align_t> workspace(
        conv2d_gemm_workspace(geometry, DType::kFloat32) / sizeof(std::max_align_t) + 1);
    conv2d_gemm(Conv2dPass::kForward, geometry,
                {.x = x.data(), .weight = weight.data(), .bias = bias.empty() ? nullptr : bias.data(), .y = y.data()},
                DType::kFloat32, workspace.data());
    EXPECT_TRUE(all_near(std::vector<double>(y.begin(), y.end()), one.expected[0].values, 1e-5));
  }
}

}  // namespace
}  // namespace paceline::test
