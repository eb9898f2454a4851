#include "conv2d/conv2d.h"

#include "conv2d/geometry.h"
#include "shared/text.h"

#include <algorithm>

namespace paceline {

const OpDef& conv2d_operator();
const OpDef& conv2d_backward_data_operator();
const OpDef& conv2d_backward_weight_operator();

Conv2dGeometry make_geometry(const Shape& x, const Shape& weight, const Conv2dAttributes& attributes) {
  require(x.ndim() == 4, "[conv2d] x has ", x.ndim(), " dimensions, expected 4");
  require(weight.ndim() == 4, "[conv2d] weight has ", weight.ndim(), " dimensions, expected 4");
  const std::int64_t groups = attributes.groups;
  require(groups > 0 && x[1] % groups == 0 && weight[0] % groups == 0, "[conv2d] ", groups,
          " groups do not divide the channels of x ", x, " and weight ", weight);
  require(weight[1] == x[1] / groups, "[conv2d] weight has shape ", weight, ", expected (any, ", x[1] / groups,
          ", any, any) for x of shape ", x, " and ", groups, " groups");
  Conv2dGeometry geometry{x[0],
                          x[1],
                          weight[0],
                          groups,
                          {x[2], x[3]},
                          {weight[2], weight[3]},
                          {},
                          attributes.stride,
                          attributes.padding,
                          attributes.dilation};
  for (std::size_t i = 0; i < 2; ++i) {
    require(geometry.stride[i] > 0 && geometry.dilation[i] > 0 && geometry.padding[i] >= 0, "[conv2d] stride ",
            text_of(geometry.stride), " and dilation ", text_of(geometry.dilation), " must be positive, padding ",
            text_of(geometry.padding), " not negative");
    const std::int64_t reach = geometry.dilation[i] * (geometry.kernel[i] - 1) + 1;
    const std::int64_t room = geometry.size[i] + 2 * geometry.padding[i] - reach;
    require(geometry.kernel[i] > 0 && room >= 0, "[conv2d] kernel ", text_of(geometry.kernel), " with dilation ",
            text_of(geometry.dilation), " does not fit into the padded x of shape ", x);
    geometry.result[i] = room / geometry.stride[i] + 1;
  }
  return geometry;
}

namespace {

// The backward operators need the shape that is not among their inputs.
struct BackwardAttributes {
  Conv2dAttributes conv;
  Shape missing;  // of x for the data pass, of the weight for the other
};

const Conv2dAttributes& of(const void* attributes) { return *static_cast<const Conv2dAttributes*>(attributes); }
const BackwardAttributes& backward_of(const void* attributes) {
  return *static_cast<const BackwardAttributes*>(attributes);
}

AttributeText text(const Conv2dAttributes& conv) {
  return {{"stride", text_of(conv.stride)},
          {"padding", text_of(conv.padding)},
          {"dilation", text_of(conv.dilation)},
          {"groups", str(conv.groups)}};
}

AttributeText backward_text(const void* attributes) { return text(backward_of(attributes).conv); }

void run(Conv2dPass pass, const Conv2dGeometry& geometry, const Conv2dArrays& arrays, DType dtype, void* workspace) {
  const bool empty = geometry.examples == 0 || geometry.out == 0 || geometry.in == 0;
  if (!empty && dtype == DType::kFloat32 && conv2d_onednn(pass, geometry, arrays)) return;
  conv2d_gemm(pass, geometry, arrays, dtype, workspace);
}

// Inputs: x, weight, bias or not.
void forward_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const Conv2dGeometry geometry = make_geometry(in[0].shape, in[1].shape, of(attributes));
  run(Conv2dPass::kForward, geometry,
      {.x = in[0].data, .weight = in[1].data, .bias = in.size() > 2 ? in[2].data : nullptr, .y = out[0].data},
      in[0].dtype, context.workspace);
}

// Inputs: gradient, weight.
void backward_data_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                       const void* attributes) {
  const Conv2dGeometry geometry = make_geometry(out[0].shape, in[1].shape, backward_of(attributes).conv);
  run(Conv2dPass::kBackwardData, geometry, {.weight = in[1].data, .y_gradient = in[0].data, .x_gradient = out[0].data},
      in[0].dtype, context.workspace);
}

// Inputs: gradient, x. Outputs: gradients of weight and bias.
void backward_weight_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                         const void* attributes) {
  const Conv2dGeometry geometry = make_geometry(in[1].shape, out[0].shape, backward_of(attributes).conv);
  run(Conv2dPass::kBackwardWeight, geometry,
      {.x = in[1].data, .y_gradient = in[0].data, .weight_gradient = out[0].data, .bias_gradient = out[1].data},
      in[0].dtype, context.workspace);
}

Shape result_shape(const Conv2dGeometry& geometry) {
  return {geometry.examples, geometry.out, geometry.result[0], geometry.result[1]};
}

void check_gradient(const char* name, const NDArray& gradient, const Conv2dGeometry& geometry) {
  require(gradient.shape() == result_shape(geometry), "[", name, "] gradient has shape ", gradient.shape(),
          ", expected ", result_shape(geometry));
}

Conv2dGeometry data_geometry(const std::vector<NDArray>& inputs, const void* attributes) {
  return make_geometry(backward_of(attributes).missing, inputs[1].shape(), backward_of(attributes).conv);
}

Conv2dGeometry weight_geometry(const std::vector<NDArray>& inputs, const void* attributes) {
  return make_geometry(inputs[1].shape(), backward_of(attributes).missing, backward_of(attributes).conv);
}

}  // namespace

OpDef conv2d_op() {
  conv2d_prepare_onednn();
  return OpDef("conv2d")
      .attributes<Conv2dAttributes>()
      .input("x")
      .input("weight")
      .optional_input("bias")
      .saves_inputs({0, 1})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        const NDArray& weight = inputs[1];
        const NDArray& bias = inputs[2];
        const Conv2dGeometry geometry = make_geometry(x.shape(), weight.shape(), of(attributes));
        require(is_floating(x.dtype()), "[conv2d] x is ", name_of(x.dtype()), ", expected a floating type");
        require(weight.dtype() == x.dtype(), "[conv2d] weight is ", name_of(weight.dtype()), ", x is ",
                name_of(x.dtype()));
        if (!bias.is_none())
          require(bias.shape() == Shape{geometry.out} && bias.dtype() == x.dtype(), "[conv2d] bias is ",
                  bias.describe(), ", expected ", name_of(x.dtype()), " ", Shape{geometry.out});
        return std::vector<ArraySpec>{{result_shape(geometry), x.dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        return conv2d_gemm_workspace(make_geometry(inputs[0].shape(), inputs[1].shape(), of(attributes)),
                                     inputs[0].dtype());
      })
      .cpu(forward_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        const auto& conv = call.attributes<Conv2dAttributes>();
        const auto with_shape = [&](std::size_t input) -> std::shared_ptr<const void> {
          return std::make_shared<BackwardAttributes>(BackwardAttributes{conv, call.input_specs[input].shape});
        };
        std::vector<Gradient> result(3);
        const bool biased = call.input_specs[2].shape.ndim() == 1;
        if (call.wants_gradient(0))
          result[0] = invoke(conv2d_backward_data_operator(), {gradients[0], call.inputs[1]}, with_shape(0))[0];
        if (call.wants_gradient(1) || (biased && call.wants_gradient(2))) {
          const auto both = invoke(conv2d_backward_weight_operator(), {gradients[0], call.inputs[0]}, with_shape(1));
          result[1] = both[0];
          if (biased) result[2] = both[1];
        }
        return result;
      })
      .text([](const void* attributes) { return text(of(attributes)); });
}

OpDef conv2d_backward_data_op() {
  conv2d_prepare_onednn();
  return OpDef("conv2d_backward_data")
      .attributes<BackwardAttributes>()
      .input("gradient")
      .input("weight")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        check_gradient("conv2d_backward_data", inputs[0], data_geometry(inputs, attributes));
        return std::vector<ArraySpec>{{backward_of(attributes).missing, inputs[0].dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        return conv2d_gemm_workspace(data_geometry(inputs, attributes), inputs[0].dtype());
      })
      .cpu(backward_data_cpu)
      .text(backward_text);
}

OpDef conv2d_backward_weight_op() {
  conv2d_prepare_onednn();
  return OpDef("conv2d_backward_weight")
      .attributes<BackwardAttributes>()
      .input("gradient")
      .input("x")
      .output("weight_gradient")
      .output("bias_gradient")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const Conv2dGeometry geometry = weight_geometry(inputs, attributes);
        check_gradient("conv2d_backward_weight", inputs[0], geometry);
        return std::vector<ArraySpec>{{backward_of(attributes).missing, inputs[0].dtype()},
                                      {{geometry.out}, inputs[0].dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        return conv2d_gemm_workspace(weight_geometry(inputs, attributes), inputs[0].dtype());
      })
      .cpu(backward_weight_cpu)
      .text(backward_text);
}

NDArray conv2d(const NDArray& x, const NDArray& weight, const NDArray& bias, const Conv2dAttributes& attributes) {
  return invoke(conv2d_operator(), {x, weight, bias}, attributes);
}

}  // namespace paceline
