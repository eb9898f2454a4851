#include "convolution/geometry.h"

#include <paceline/ops.h>
#include <support/operator_case.h>
#include <support/tolerance.h>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <utility>

namespace paceline::test {
namespace {

// Calls visit(place in y, place in x, place in the weight) for each product in the definition of a convolution.
template <class Visit>
void for_each_product(const ConvolutionGeometry& g, const Visit& visit) {
  const auto place = [](const ConvolutionGeometry::Sizes& at, const ConvolutionGeometry::Sizes& sizes) {
    return (at[0] * sizes[1] + at[1]) * sizes[2] + at[2];
  };
  const auto places = [](const ConvolutionGeometry::Sizes& sizes) {
    std::vector<ConvolutionGeometry::Sizes> all;
    for (std::int64_t z = 0; z < sizes[0]; ++z)
      for (std::int64_t y = 0; y < sizes[1]; ++y)
        for (std::int64_t x = 0; x < sizes[2]; ++x) all.push_back({z, y, x});
    return all;
  };
  for (std::int64_t n = 0; n < g.examples; ++n)
    for (std::int64_t o = 0; o < g.out; ++o)
      for (const auto& to : places(g.result))
        for (std::int64_t c = 0; c < g.group_in(); ++c)
          for (const auto& k : places(g.kernel)) {
            ConvolutionGeometry::Sizes from;
            bool inside = true;
            for (std::size_t i = 0; i < 3; ++i) {
              from[i] = to[i] * g.stride[i] + k[i] * g.dilation[i] - g.padding[i];
              inside = inside && from[i] >= 0 && from[i] < g.size[i];
            }
            if (!inside) continue;
            const std::int64_t channel = o / g.group_out() * g.group_in() + c;
            visit(static_cast<std::size_t>((n * g.out + o) * g.output_places() + place(to, g.result)),
                  static_cast<std::size_t>((n * g.in + channel) * g.input_places() + place(from, g.size)),
                  static_cast<std::size_t>((o * g.group_in() + c) * (g.patch() / g.group_in()) + place(k, g.kernel)));
          }
}

// Zeros, or the bias of each channel.
CaseArray biased(const Shape& shape, const CaseArray& bias) {
  CaseArray y{shape, std::vector<double>(static_cast<std::size_t>(shape.size()))};
  const std::size_t channels = static_cast<std::size_t>(shape[1]),
                    each = y.values.size() / (shape[0] * channels + !shape[0]);
  for (std::size_t i = 0; i < y.values.size() && !bias.none; ++i) y.values[i] = bias.values[i / each % channels];
  return y;
}

OperatorCase conv(const std::string& name, const Shape& x, const Shape& weight,
                  const ConvolutionAttributes& attributes = {}, bool with_bias = true) {
  const CaseArray a = sample(x, 1), w = sample(weight, 2), b = with_bias ? sample({weight[0]}, 3) : no_array();
  const ConvolutionGeometry g = make_geometry("convolution", x, weight, attributes);
  CaseArray y = biased(g.result_shape(), b);
  for_each_product(
      g, [&](std::size_t to, std::size_t from, std::size_t by) { y.values[to] += a.values[from] * w.values[by]; });
  return {.name = name,
          .inputs = {a, w, b},
          .attributes = with(attributes),
          .expected = {y},
          .gradient = x.size() > 0,
          .tolerance = 8};
}

// `result` is what the transposed convolution of an array of shape x gives.
OperatorCase transposed(const std::string& name, const Shape& x, const Shape& weight, const Shape& result,
                        const TransposedConvolutionAttributes& attributes = {}, bool with_bias = true) {
  const CaseArray a = sample(x, 1), w = sample(weight, 2), b = with_bias ? sample({result[1]}, 3) : no_array();
  const ConvolutionGeometry g = make_geometry("convolution", result, weight, attributes);
  CaseArray y = biased(result, b);
  for_each_product(
      g, [&](std::size_t from, std::size_t to, std::size_t by) { y.values[to] += a.values[from] * w.values[by]; });
  return {.name = name,
          .inputs = {a, w, b},
          .attributes = with(attributes),
          .expected = {y},
          .gradient = x.size() > 0,
          .tolerance = 8};
}

const RegisterCases kConvolution(
    "convolution",
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
     conv("no examples", {0, 2, 4, 4}, {3, 2, 3, 3}),
     conv("one axis", {2, 3, 9}, {4, 3, 3}),
     conv("one axis, all at once", {2, 4, 11}, {6, 2, 3},
          {.stride = {2}, .padding = {1}, .dilation = {2}, .groups = 2}),
     conv("three axes", {2, 3, 4, 5, 4}, {4, 3, 2, 3, 2}),
     conv("three axes, all at once", {1, 4, 6, 5, 7}, {6, 2, 2, 3, 2},
          {.stride = {2, 1, 3}, .padding = {1, 0, 2}, .dilation = {2, 1, 2}, .groups = 2}),
     conv("three axes, depthwise", {2, 3, 3, 4, 3}, {3, 1, 2, 2, 2}, {.groups = 3}),
     conv("no channels", {1, 0, 3}, {2, 0, 2})},
    {{"weight has 3 dimensions, expected 4", {sample({1, 1, 4, 4}, 1), sample({1, 3, 3}, 2), no_array()}},
     {"x has 2 dimensions, expected 3 to 5", {sample({1, 4}, 1), sample({1, 3}, 2), no_array()}},
     {"expected 2 as its second size", {sample({1, 2, 4, 4}, 1), sample({1, 1, 3, 3}, 2), no_array()}},
     {"bias is", {sample({1, 1, 4, 4}, 1), sample({2, 1, 3, 3}, 2), sample({3}, 3)}},
     {"does not fit into the padded x", {sample({1, 1, 2, 4}, 1), sample({1, 1, 3, 3}, 2), no_array()}},
     {"2 groups do not divide",
      {sample({1, 3, 4, 4}, 1), sample({2, 1, 3, 3}, 2), no_array()},
      with(ConvolutionAttributes{.groups = 2})},
     {"must be positive",
      {sample({1, 1, 4, 4}, 1), sample({1, 1, 3, 3}, 2), no_array()},
      with(ConvolutionAttributes{.stride = {0, 1}})},
     {"stride (2,) has 1 numbers, expected 2 or none",
      {sample({1, 1, 4, 4}, 1), sample({1, 1, 3, 3}, 2), no_array()},
      with(ConvolutionAttributes{.stride = {2}})},
     {"2^31 places of a channel",
      {sample({1, 1, 4, 4}, 1), sample({1, 1, 1, 1}, 2), no_array()},
      with(ConvolutionAttributes{.padding = {1 << 20, 1 << 20}})},
     {"expected a floating type",
      {typed(DType::kInt32, {1, 1, 1, 1}, {1}), typed(DType::kInt32, {1, 1, 1, 1}, {1}), no_array()}}});

const RegisterCases kBackwardWeight("convolution_backward_weight", {},
                                    {{"x has 0 dimensions", {sample({1, 1, 2, 2}, 1), sample({}, 1)}}});

const RegisterCases kTransposed(
    "transposed_convolution",
    {{.name = "by hand",
      .inputs = {array({1, 1, 2}, {1, 2}), array({1, 1, 2}, {3, 4}), array({1}, {10})},
      .attributes = with(TransposedConvolutionAttributes{{.stride = {2}}, {1}}),
      .expected = {array({1, 1, 5}, {13, 14, 16, 18, 10})}},
     transposed("one axis", {2, 3, 4}, {3, 2, 3}, {2, 2, 6}),
     transposed("two axes", {2, 3, 4, 5}, {3, 2, 3, 2}, {2, 2, 6, 6}),
     transposed("two axes, all at once", {2, 4, 3, 4}, {4, 3, 3, 2}, {2, 6, 8, 9},
                {{.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 3}, .groups = 2}, {1, 0}}),
     transposed("three axes", {1, 3, 2, 3, 2}, {3, 2, 2, 2, 3}, {1, 2, 4, 6, 4}, {{.stride = {2, 2, 1}}, {0, 0, 0}},
                false),
     transposed("one element", {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}),
     transposed("no examples", {0, 2, 3}, {2, 1, 2}, {0, 1, 4})},
    {{"expected 3 as its first size", {sample({1, 3, 4}, 1), sample({2, 3, 2}, 2), no_array()}},
     {"output padding (1,)",
      {sample({1, 3, 4}, 1), sample({3, 1, 2}, 2), no_array()},
      with(TransposedConvolutionAttributes{{}, {1}})},
     {"leaves nothing",
      {sample({1, 1, 1}, 1), sample({1, 1, 2}, 2), no_array()},
      with(TransposedConvolutionAttributes{{.padding = {1}}, {}})},
     {"bias is", {sample({1, 2, 4}, 1), sample({2, 3, 2}, 2), sample({2}, 3)}}});

// The catalogue's checks run float32 through oneDNN where it is built in; the other path must give the same.
TEST(Convolution, GemmPathFollowsTheDefinitionInFloat32) {
  for (const OperatorCase& one : operator_cases()["convolution"].cases) {
    SCOPED_TRACE(one.name);
    const auto& attributes =
        one.attributes ? *static_cast<const ConvolutionAttributes*>(one.attributes.get()) : ConvolutionAttributes{};
    const ConvolutionGeometry geometry =
        make_geometry("convolution", one.inputs[0].shape, one.inputs[1].shape, attributes);
    const auto floats = [](const CaseArray& x) { return std::vector<float>(x.values.begin(), x.values.end()); };
    const std::vector<float> x = floats(one.inputs[0]), weight = floats(one.inputs[1]), bias = floats(one.inputs[2]);
    std::vector<float> y(one.expected[0].values.size());
    std::vector<std::max_align_t> workspace(
        gemm_convolution_workspace(geometry, DType::kFloat32) / sizeof(std::max_align_t) + 1);
    gemm_convolution(
        ConvolutionPass::kForward, geometry,
        {.x = x.data(), .weight = weight.data(), .bias = bias.empty() ? nullptr : bias.data(), .y = y.data()},
        DType::kFloat32, workspace.data());
    EXPECT_TRUE(all_near(std::vector<double>(y.begin(), y.end()), one.expected[0].values, 1e-5));
  }
}

// Columns of more than a million elements are made in blocks.
TEST(Convolution, BlocksOfColumnsGiveTheWhole) {
  const NDArray x = NDArray::full({1, 64, 64, 64}, 1, DType::kFloat64);
  const NDArray weight = NDArray::full({2, 64, 3, 3}, 1, DType::kFloat64);
  const NDArray y = convolution(x, weight, NDArray(), {.padding = {1, 1}});
  const NDArray dx = transposed_convolution(y, weight, NDArray(), {{.padding = {1, 1}}, {}});
  const NDArray inner = y.narrow(2, 1, 63).narrow(3, 1, 63);
  EXPECT_EQ(min(inner).item<double>(), 64 * 9);
  EXPECT_EQ(max(inner).item<double>(), 64 * 9);
  EXPECT_EQ(sum(y).item<double>(), 2 * 64 * (190.0 * 190.0));  // 62 * 3 + 2 * 2 along each axis
  EXPECT_EQ(max(dx).item<double>(), 2 * 9 * 64 * 9);
}

TEST(Convolution, OnCudaRunsInCudnnWhereItCan) {
  void* const library = dlopen("libcudnn.so.0", RTLD_NOW);
  if (!library) GTEST_SKIP() << "counts the calls of the emulated cuDNN, which is not there";
  const auto issued = reinterpret_cast<int (*)()>(dlsym(library, "emulated_cudnn_issued"));
  auto calls = [&, before = issued()](const NDArray& result) mutable {
    result.wait();
    const int all = issued();
    return all - std::exchange(before, all);
  };
  const Device gpu{DeviceKind::kCuda, 0};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16}) {
    SCOPED_TRACE(name_of(dtype));
    const NDArray x = NDArray::full({2, 4, 5, 6}, 1, dtype, gpu), bias = NDArray::full({6}, 1, dtype, gpu);
    const NDArray weight = NDArray::full({6, 2, 3, 3}, 1, dtype, gpu);
    const NDArray y = convolution(x, weight, bias, {.padding = {1, 1}, .groups = 2});
    EXPECT_EQ(calls(y), 2);  // the bias is one
    EXPECT_EQ(calls(transposed_convolution(y, weight, NDArray(), {{.padding = {1, 1}, .groups = 2}, {}})), 1);
    EXPECT_EQ(calls(convolution(x.narrow(0, 0, 0), weight, bias, {.groups = 2})), 0);
  }
}

// In float32 the fastest that gives the same bits every time, in the arithmetic wanted and with a workspace that fits.
TEST(Convolution, AsksCudnnOnceForAnAlgorithmInFloat32) {
  void* const library = dlopen("libcudnn.so.0", RTLD_NOW);
  if (!library) GTEST_SKIP() << "reads the calls of the emulated cuDNN, which is not there";
  const auto number = [library](const char* name) { return reinterpret_cast<int (*)()>(dlsym(library, name))(); };
  const Device gpu{DeviceKind::kCuda, 0};
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    SCOPED_TRACE(name_of(dtype));
    const bool asks = dtype == DType::kFloat32;
    const NDArray x = NDArray::full({2, 3, 11, 6}, 1, dtype, gpu), weight = NDArray::full({6, 3, 3, 3}, 1, dtype, gpu);
    for (int time = 0; time < 2; ++time) {
      const int before = number("emulated_cudnn_asked");
      const NDArray y = convolution(x, weight);
      y.wait();
      EXPECT_EQ(number("emulated_cudnn_algorithm"), asks ? 5 : 1);
      transposed_convolution(y, weight).wait();
      EXPECT_EQ(number("emulated_cudnn_algorithm"), asks ? 5 : 1);
      EXPECT_EQ(number("emulated_cudnn_asked") - before, asks && time == 0 ? 2 : 0);
    }
  }
}

}  // namespace
}  // namespace paceline::test
