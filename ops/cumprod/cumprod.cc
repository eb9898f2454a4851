#include "cumprod/cumprod.h"

#include "cumprod/lines.h"
#include "shared/rows.h"
#include "shared/without_axes.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>

namespace paceline {

const OpDef& cumprod_operator();
const OpDef& cumprod_backward_operator();

namespace {

const CumprodAttributes& of(const void* attributes) { return *static_cast<const CumprodAttributes*>(attributes); }

AxisView view_of(const Shape& shape, const void* attributes) {
  return around_axis(shape, normalize_axis(of(attributes).axis, shape.ndim(), "cumprod"));
}

// Calls line(first element) for each line.
template <class Line>
void for_each_line(const AxisView& view, const Line& line) {
  const std::int64_t smallest = std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, view.size));
  detail::parallel_ranges(view.lines(), smallest, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) line(view.first(i));
  });
}

void cumprod_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const AxisView view = view_of(in[0].shape, attributes);
  visit_dtype(in[0].dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, bool>)
      for_each_line(view, [&](std::int64_t first) {
        multiply_line(in[0].as<const T>() + first, out[0].as<T>() + first, view.size, view.inner);
      });
  });
}

// The workspace takes a number for each element.
void cumprod_backward_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                          const void* attributes) {
  const AxisView view = view_of(in[0].shape, attributes);
  double* const sums = static_cast<double*>(context.workspace);
  visit_floating(in[0].dtype, "cumprod_backward", [&]<class T>(TypeTag<T>) {
    for_each_line(view, [&](std::int64_t first) {
      multiply_line_gradient(in[0].as<const T>() + first, in[1].as<const T>() + first, out[0].as<T>() + first,
                             sums + first, view.size, view.inner);
    });
  });
}

AttributeText text(const void* attributes) { return {{"axis", str(of(attributes).axis)}}; }

}  // namespace

OpDef cumprod_op() {
  return OpDef("cumprod")
      .attributes<CumprodAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        require(x.dtype() != DType::kBool, "[cumprod] x is ", x.describe(), ", cast it first");
        normalize_axis(of(attributes).axis, x.ndim(), "cumprod");
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .cpu(cumprod_cpu)
      .saves_inputs({0})
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(cumprod_backward_operator(), {gradients[0], call.inputs[0]}, call.attribute_data)[0]};
      })
      .text(text);
}

OpDef cumprod_backward_op() {
  return OpDef("cumprod_backward")
      .attributes<CumprodAttributes>()
      .input("gradient")
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[1];
        normalize_axis(of(attributes).axis, x.ndim(), "cumprod_backward");
        require(is_floating(x.dtype()) && inputs[0].dtype() == x.dtype() && inputs[0].shape() == x.shape(),
                "[cumprod_backward] gradient is ", inputs[0].describe(), ", expected ", x.describe(),
                " of a floating type");
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void*) {
        return static_cast<std::size_t>(inputs[0].size()) * sizeof(double);
      })
      .cpu(cumprod_backward_cpu)
      .text(text);
}

NDArray cumprod(const NDArray& x, int axis) {
  return with_an_axis("cumprod", x, axis,
                      [=](const NDArray& a) { return invoke(cumprod_operator(), {a}, CumprodAttributes{axis}); });
}

}  // namespace paceline
