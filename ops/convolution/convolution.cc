#include "convolution/convolution.h"

#include "convolution/cudnn.h"
#include "convolution/geometry.h"
#include "reduce/reduce.h"
#include "shared/channels.h"
#include "shared/column_sums.h"
#include "shared/rows.h"
#include "shared/text.h"

#include <algorithm>
#include <numeric>

namespace paceline {

const OpDef& convolution_operator();
const OpDef& convolution_backward_weight_operator();
const OpDef& transposed_convolution_operator();

namespace {

constexpr std::int64_t kLimit = std::int64_t{1} << 31;  // of what BLAS and oneDNN count

// `given` for the last axes, or `otherwise`; `missing` for the first.
ConvolutionGeometry::Sizes spread(const char* name, const char* what, const Shape& given, int axes,
                                  std::int64_t otherwise, std::int64_t missing) {
  require(given.ndim() == 0 || given.ndim() == axes, "[", name, "] ", what, " ", given, " has ", given.ndim(),
          " numbers, expected ", axes, " or none");
  ConvolutionGeometry::Sizes result{missing, missing, missing};
  for (int i = 0; i < axes; ++i) {
    std::int64_t& size = result[static_cast<std::size_t>(3 - axes + i)];
    size = given.ndim() == 0 ? otherwise : given[i];
    require(size < kLimit, "[", name, "] ", what, " ", given, ": numbers of 2^31 and more are not supported");
  }
  return result;
}

Shape spatial(const Shape& shape) {
  return Shape(std::span<const std::int64_t>(shape.begin() + 2, static_cast<std::size_t>(shape.ndim() - 2)));
}

void check_dimensions(const char* name, const Shape& x, const Shape& weight) {
  require(x.ndim() >= 3 && x.ndim() <= 5, "[", name, "] x has ", x.ndim(), " dimensions, expected 3 to 5");
  require(weight.ndim() == x.ndim(), "[", name, "] weight has ", weight.ndim(), " dimensions, expected ", x.ndim());
}

}  // namespace

Shape ConvolutionGeometry::result_shape() const {
  Shape shape{examples, out};
  for (int i = 3 - axes; i < 3; ++i) shape.push_back(result[static_cast<std::size_t>(i)]);
  return shape;
}

ConvolutionGeometry make_geometry(const char* name, const Shape& x, const Shape& weight,
                                  const ConvolutionAttributes& attributes) {
  check_dimensions(name, x, weight);
  const std::int64_t groups = attributes.groups;
  require(groups > 0 && x[1] % groups == 0 && weight[0] % groups == 0, "[", name, "] ", groups,
          " groups do not divide the channels of x ", x, " and weight ", weight);
  require(weight[1] == x[1] / groups, "[", name, "] weight has shape ", weight, ", expected ", x[1] / groups,
          " as its second size for x of shape ", x, " and ", groups, " groups");
  const int axes = x.ndim() - 2;
  ConvolutionGeometry g{axes, x[0], x[1], weight[0], groups, {}, {}, {}, {}, {}, {}};
  g.size = spread(name, "size", spatial(x), axes, 1, 1);
  g.kernel = spread(name, "kernel", spatial(weight), axes, 1, 1);
  g.stride = spread(name, "stride", attributes.stride, axes, 1, 1);
  g.padding = spread(name, "padding", attributes.padding, axes, 0, 0);
  g.dilation = spread(name, "dilation", attributes.dilation, axes, 1, 1);
  std::int64_t places = 1;
  for (std::size_t i = 0; i < 3; ++i) {
    require(g.stride[i] > 0 && g.dilation[i] > 0 && g.padding[i] >= 0, "[", name, "] stride ", attributes.stride,
            " and dilation ", attributes.dilation, " must be positive, padding ", attributes.padding, " not negative");
    const std::int64_t room = g.size[i] + 2 * g.padding[i] - g.dilation[i] * (g.kernel[i] - 1) - 1;
    require(g.kernel[i] > 0 && room >= 0, "[", name, "] kernel ", spatial(weight), " with dilation ",
            attributes.dilation, " does not fit into the padded x of shape ", x);
    g.result[i] = room / g.stride[i] + 1;
    places = checked_product(name, places, g.result[i]);
  }
  require(std::max({places, g.input_places(), g.patch()}) < kLimit, "[", name, "] x ", x, " with weight ", weight,
          ": 2^31 places of a channel, or weights of a channel, and more are not supported");
  return g;
}

ConvolutionGeometry transposed_geometry(const Shape& x, const Shape& weight,
                                        const TransposedConvolutionAttributes& attributes) {
  constexpr const char* kName = "transposed_convolution";
  check_dimensions(kName, x, weight);
  const int axes = x.ndim() - 2;
  const auto size = spread(kName, "size", spatial(x), axes, 1, 1);
  const auto kernel = spread(kName, "kernel", spatial(weight), axes, 1, 1);
  const auto stride = spread(kName, "stride", attributes.stride, axes, 1, 1);
  const auto padding = spread(kName, "padding", attributes.padding, axes, 0, 0);
  const auto dilation = spread(kName, "dilation", attributes.dilation, axes, 1, 1);
  const auto extra = spread(kName, "output padding", attributes.output_padding, axes, 0, 0);
  require(attributes.groups > 0 && x[1] == weight[0], "[", kName, "] weight has shape ", weight, ", expected ", x[1],
          " as its first size for x of shape ", x, "; groups must be positive");
  Shape result{x[0], checked_product(kName, weight[1], attributes.groups)};
  for (auto i = static_cast<std::size_t>(3 - axes); i < 3; ++i) {
    require(extra[i] >= 0 && extra[i] < std::max<std::int64_t>(1, stride[i]), "[", kName, "] output padding ",
            attributes.output_padding, " must not be negative, and less than the stride");
    result.push_back((size[i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + 1 + extra[i]);
    require(result.back() > 0, "[", kName, "] x of shape ", x, " with padding ", attributes.padding,
            " leaves nothing as the result");
  }
  const ConvolutionGeometry geometry = make_geometry(kName, result, weight, attributes);
  require(geometry.result_shape() == x, "[", kName, "] x has shape ", x, ", expected places along every axis");
  return geometry;
}

namespace {

const ConvolutionAttributes& of(const void* attributes) {
  return *static_cast<const ConvolutionAttributes*>(attributes);
}
const TransposedConvolutionAttributes& transposed_of(const void* attributes) {
  return *static_cast<const TransposedConvolutionAttributes*>(attributes);
}

constexpr const char* kBackwardWeight = "convolution_backward_weight";

// What is not among the inputs of the weights' gradient.
struct BackwardAttributes : ConvolutionAttributes {
  Shape weight;
  bool bias;  // is wanted
};
const BackwardAttributes& backward_of(const void* attributes) {
  return *static_cast<const BackwardAttributes*>(attributes);
}

ConvolutionGeometry weight_geometry(const std::vector<NDArray>& inputs, const void* attributes) {
  return make_geometry(kBackwardWeight, inputs[1].shape(), backward_of(attributes).weight, of(attributes));
}

AttributeText text(const void* attributes) {
  const auto& [stride, padding, dilation, groups] = of(attributes);
  return {
      {"stride", stride.text()}, {"padding", padding.text()}, {"dilation", dilation.text()}, {"groups", str(groups)}};
}

Shape input_shape(const ConvolutionGeometry& g) {
  Shape shape{g.examples, g.in};
  for (int i = 3 - g.axes; i < 3; ++i) shape.push_back(g.size[static_cast<std::size_t>(i)]);
  return shape;
}

void add_to_channels(const float* bias, const ConvolutionGeometry& g, float* x) {
  for (std::int64_t i = 0; i < g.examples * g.in; ++i, x += g.input_places())
    for (std::int64_t place = 0; place < g.input_places(); ++place) x[place] += bias[i % g.in];
}

void run(ConvolutionPass pass, const ConvolutionGeometry& g, const ConvolutionArrays& arrays, DType dtype,
         void* workspace) {
  const bool empty = g.examples == 0 || g.out == 0 || g.in == 0;
  if (empty || dtype != DType::kFloat32 || !onednn_convolution(pass, g, arrays))
    return gemm_convolution(pass, g, arrays, dtype, workspace);
  if (pass == ConvolutionPass::kBackwardData && arrays.bias)
    add_to_channels(static_cast<const float*>(arrays.bias), g, static_cast<float*>(arrays.x_gradient));
}

// Inputs: x, weight, bias or not.
void forward_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  run(ConvolutionPass::kForward, make_geometry("convolution", in[0].shape, in[1].shape, of(attributes)),
      {.x = in[0].data, .weight = in[1].data, .bias = in.size() > 2 ? in[2].data : nullptr, .y = out[0].data},
      in[0].dtype, context.workspace);
}

// Inputs: x, weight, bias or not.
void transposed_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                    const void* attributes) {
  run(ConvolutionPass::kBackwardData, transposed_geometry(in[0].shape, in[1].shape, transposed_of(attributes)),
      {.weight = in[1].data,
       .bias = in.size() > 2 ? in[2].data : nullptr,
       .y_gradient = in[0].data,
       .x_gradient = out[0].data},
      in[0].dtype, context.workspace);
}

// Inputs: gradient, x. Outputs: gradients of weight and bias; that of the bias is empty where it is not wanted.
void backward_weight_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                         const void* attributes) {
  run(ConvolutionPass::kBackwardWeight, make_geometry(kBackwardWeight, in[1].shape, out[0].shape, of(attributes)),
      {.x = in[1].data,
       .y_gradient = in[0].data,
       .weight_gradient = out[0].data,
       .bias_gradient = out[1].size() > 0 ? out[1].data : nullptr},
      in[0].dtype, context.workspace);
}

std::size_t workspace_bytes(ConvolutionPass pass, const ConvolutionGeometry& g, const std::vector<NDArray>& inputs) {
  const NDArray& x = inputs[0];
  return x.device().kind == DeviceKind::kCuda
             ? cudnn_workspace(pass, g, x.dtype(), have_channels_last(inputs), x.device())
             : gemm_convolution_workspace(g, x.dtype());
}

void check_types(const char* name, const std::vector<NDArray>& inputs, std::int64_t channels) {
  const auto& [x, weight, bias] = std::tie(inputs[0], inputs[1], inputs[2]);
  require(is_floating(x.dtype()), "[", name, "] x is ", name_of(x.dtype()), ", expected a floating type");
  require(weight.dtype() == x.dtype(), "[", name, "] weight is ", name_of(weight.dtype()), ", x is ",
          name_of(x.dtype()));
  require(bias.is_none() || (bias.shape() == Shape{channels} && bias.dtype() == x.dtype()), "[", name, "] bias is ",
          bias.is_none() ? "none" : bias.describe(), ", expected ", name_of(x.dtype()), " ", Shape{channels});
}

// Gradients of weight and bias of a convolution.
std::vector<NDArray> backward_weight(const NDArray& gradient, const NDArray& x, const ConvolutionAttributes& how,
                                     const Shape& weight, bool bias) {
  const std::shared_ptr<const void> attributes =
      std::make_shared<BackwardAttributes>(BackwardAttributes{how, weight, bias});
  return invoke(convolution_backward_weight_operator(), {gradient, x}, attributes);
}

NDArray sum_by_channel(const NDArray& x) {
  std::vector<int> axes(static_cast<std::size_t>(x.ndim() - 1));
  std::iota(axes.begin(), axes.end(), 1);
  axes[0] = 0;
  return sum(x, axes);
}

// What a transposed convolution needs to give x's sizes, which the convolution's stride may have cut.
TransposedConvolutionAttributes transposed(const ConvolutionGeometry& g, const ConvolutionAttributes& how) {
  TransposedConvolutionAttributes result{how, {}};
  for (auto i = static_cast<std::size_t>(3 - g.axes); i < 3; ++i)
    result.output_padding.push_back((g.size[i] + 2 * g.padding[i] - g.dilation[i] * (g.kernel[i] - 1) - 1) %
                                    g.stride[i]);
  return result;
}

OpDef schema(const char* name) {
  prepare_onednn_convolution();
  return OpDef(name).input("x").input("weight").optional_input("bias").saves_inputs({0, 1}).channels_last();
}

}  // namespace

OpDef convolution_op() {
  return schema("convolution")
      .attributes<ConvolutionAttributes>()
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const ConvolutionGeometry g =
            make_geometry("convolution", inputs[0].shape(), inputs[1].shape(), of(attributes));
        check_types("convolution", inputs, g.out);
        return std::vector<ArraySpec>{{g.result_shape(), inputs[0].dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        return workspace_bytes(ConvolutionPass::kForward,
                               make_geometry("convolution", inputs[0].shape(), inputs[1].shape(), of(attributes)),
                               inputs);
      })
      .cpu(forward_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        const auto& how = call.attributes<ConvolutionAttributes>();
        const Shape &x = call.input_specs[0].shape, &weight = call.input_specs[1].shape;
        std::vector<Gradient> result(3);
        const bool biased = call.input_specs[2].shape.ndim() == 1 && call.wants_gradient(2);
        if (call.wants_gradient(0))
          result[0] = transposed_convolution(gradients[0], call.inputs[1], NDArray(),
                                             transposed(make_geometry("convolution", x, weight, how), how));
        if (call.wants_gradient(1) || biased) {
          const std::vector<NDArray> both = backward_weight(gradients[0], call.inputs[0], how, weight, biased);
          result[1] = both[0];
          if (biased) result[2] = both[1];
        }
        return result;
      })
      .text(text);
}

OpDef convolution_backward_weight_op() {
  prepare_onednn_convolution();
  return OpDef(kBackwardWeight)
      .attributes<BackwardAttributes>()
      .input("gradient")
      .input("x")
      .output("weight_gradient")
      .output("bias_gradient")
      .channels_last()
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const ConvolutionGeometry g = weight_geometry(inputs, attributes);
        const DType dtype = inputs[0].dtype();
        require(inputs[0].shape() == g.result_shape() && dtype == inputs[1].dtype(), "[", kBackwardWeight,
                "] gradient is ", inputs[0].describe(), ", expected ", g.result_shape(), " of the type of ",
                inputs[1].describe());
        const BackwardAttributes& how = backward_of(attributes);
        return std::vector<ArraySpec>{{how.weight, dtype}, {{how.bias ? g.out : 0}, dtype}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        const ConvolutionGeometry g = weight_geometry(inputs, attributes);
        const std::size_t bytes = workspace_bytes(ConvolutionPass::kBackwardWeight, g, inputs);
        if (!backward_of(attributes).bias || !have_channels_last(inputs)) return bytes;
        return std::max(bytes, column_sums_workspace(g.examples * g.output_places(), g.out));
      })
      .cpu(backward_weight_cpu)
      .text(text);
}

OpDef transposed_convolution_op() {
  return schema("transposed_convolution")
      .attributes<TransposedConvolutionAttributes>()
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const ConvolutionGeometry g =
            transposed_geometry(inputs[0].shape(), inputs[1].shape(), transposed_of(attributes));
        check_types("transposed_convolution", inputs, g.in);
        return std::vector<ArraySpec>{{input_shape(g), inputs[0].dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        return workspace_bytes(ConvolutionPass::kBackwardData,
                               transposed_geometry(inputs[0].shape(), inputs[1].shape(), transposed_of(attributes)),
                               inputs);
      })
      .cpu(transposed_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        const ConvolutionAttributes& how = call.attributes<TransposedConvolutionAttributes>();
        std::vector<Gradient> result(3);
        if (call.wants_gradient(0)) result[0] = convolution(gradients[0], call.inputs[1], NDArray(), how);
        if (call.wants_gradient(1))
          result[1] = backward_weight(call.inputs[0], gradients[0], how, call.input_specs[1].shape, false)[0];
        if (call.input_specs[2].shape.ndim() == 1 && call.wants_gradient(2)) result[2] = sum_by_channel(gradients[0]);
        return result;
      })
      .text([](const void* attributes) {
        AttributeText result = text(attributes);
        result.emplace_back("output_padding", transposed_of(attributes).output_padding.text());
        return result;
      });
}

NDArray convolution(const NDArray& x, const NDArray& weight, const NDArray& bias,
                    const ConvolutionAttributes& attributes) {
  return invoke(convolution_operator(), {x, weight, bias}, attributes);
}

NDArray transposed_convolution(const NDArray& x, const NDArray& weight, const NDArray& bias,
                               const TransposedConvolutionAttributes& attributes) {
  return invoke(transposed_convolution_operator(), {x, weight, bias}, attributes);
}

}  // namespace paceline
