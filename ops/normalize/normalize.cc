#include "normalize/normalize.h"

#include "binary/binary.h"
#include "copy/copy.h"
#include "reduce/reduce.h"
#include "reshape/reshape.h"
#include "shared/lanes.h"
#include "shared/wide.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>
#include <cmath>

namespace paceline {

const OpDef& standardize_operator();
const OpDef& standardize_backward_operator();
const OpDef& reshape_operator();

namespace {

const StandardizeAttributes& of(const void* attributes) {
  return *static_cast<const StandardizeAttributes*>(attributes);
}

// The sizes of all axes but the last `axes`.
Shape leading(const Shape& shape, int axes) {
  return Shape(std::span<const std::int64_t>(shape.begin(), static_cast<std::size_t>(shape.ndim() - axes)));
}

template <class Row>
void for_each_row(const Tensor& x, const void* attributes, const Row& row) {
  const std::int64_t rows = leading(x.shape, of(attributes).axes).size();
  if (x.size() == 0) return;
  const std::int64_t size = x.size() / rows;
  detail::parallel_ranges(rows, std::max<std::int64_t>(1, 32768 / size), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) row(i, i * size, size);
  });
}

// Outputs: the result, and 1 / deviation of each row.
void standardize_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                     const void* attributes) {
  visit_floating(in[0].dtype, "standardize", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for_each_row(in[0], attributes, [&](std::int64_t i, std::int64_t first, std::int64_t size) {
      const T* x = in[0].as<const T>() + first;
      T* y = out[0].as<T>() + first;
      const auto load = [x](std::int64_t k) { return static_cast<A>(x[k]); };
      const A count = static_cast<A>(size);
      const A mean = of(attributes).centered ? sum_lanes<A>(size, load) / count : A(0);
      const A variance =
          sum_lanes<A>(size, [=](std::int64_t k) { return (load(k) - mean) * (load(k) - mean); }) / count;
      const A scale = A(1) / std::sqrt(variance + static_cast<A>(of(attributes).epsilon));
      out[1].as<A>()[i] = scale;
      for (std::int64_t k = 0; k < size; ++k) y[k] = T((load(k) - mean) * scale);
    });
  });
}

// Inputs: gradient, result, 1 / deviation.
void backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  visit_floating(in[0].dtype, "standardize_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for_each_row(in[0], attributes, [&](std::int64_t i, std::int64_t first, std::int64_t size) {
      const T* g = in[0].as<const T>() + first;
      const T* y = in[1].as<const T>() + first;
      T* dx = out[0].as<T>() + first;
      const auto gradient = [g](std::int64_t k) { return static_cast<A>(g[k]); };
      const A count = static_cast<A>(size);
      const A scale = in[2].as<const A>()[i];
      const A mean = of(attributes).centered ? sum_lanes<A>(size, gradient) / count : A(0);
      const A along = sum_lanes<A>(size, [=](std::int64_t k) { return gradient(k) * static_cast<A>(y[k]); }) / count;
      for (std::int64_t k = 0; k < size; ++k) dx[k] = T(scale * (gradient(k) - mean - static_cast<A>(y[k]) * along));
    });
  });
}

AttributeText text(const void* attributes) {
  const auto& [axes, centered, epsilon] = of(attributes);
  return {{"axes", str(axes)}, {"centered", centered ? "1" : "0"}, {"epsilon", str(epsilon)}};
}

NDArray scaled(const NDArray& y, const NDArray& scale, const NDArray& shift) {
  const NDArray result = scale.is_none() ? y : y * scale;
  return shift.is_none() ? result : result + shift;
}

void check_parameter(const char* name, const char* what, const NDArray& x, const NDArray& parameter,
                     const Shape& shape) {
  require(parameter.is_none() || (parameter.shape() == shape && parameter.dtype() == x.dtype()), "[", name, "] ", what,
          " is ", parameter.is_none() ? "none" : parameter.describe(), ", expected ", shape, " of the type of x, ",
          x.describe());
}

NDArray over_last(const char* name, const NDArray& x, const NDArray& scale, const NDArray& shift,
                  StandardizeAttributes how) {
  if (!scale.is_none()) how.axes = scale.ndim();
  require(how.axes >= 1 && how.axes <= x.ndim(), "[", name, "] scale has ", how.axes, " axes for x, ", x.describe(),
          ", expected at least 1 and no more than x has");
  Shape last;
  for (int i = x.ndim() - how.axes; i < x.ndim(); ++i) last.push_back(x.size(i));
  check_parameter(name, "scale", x, scale, last);
  check_parameter(name, "shift", x, shift, last);
  return scaled(invoke(standardize_operator(), {x}, how), scale, shift);
}

// (channels) with an axis of size 1 for each axis behind the channels of x.
NDArray by_channel(const NDArray& parameter, const NDArray& x) {
  if (parameter.is_none()) return parameter;
  Shape shape{x.size(1)};
  for (int i = 2; i < x.ndim(); ++i) shape.push_back(1);
  return invoke(reshape_operator(), {parameter}, ReshapeAttributes{shape, true});
}

NDArray by_groups(const char* name, const NDArray& x, std::int64_t groups, const NDArray& scale, const NDArray& shift,
                  double epsilon) {
  require(x.ndim() >= 2 && groups >= 1 && x.size(1) % groups == 0, "[", name, "] x is ", x.describe(), " for ", groups,
          " groups, expected (n, channels, ...) with channels that they divide");
  check_parameter(name, "scale", x, scale, {x.size(1)});
  check_parameter(name, "shift", x, shift, {x.size(1)});
  std::int64_t rest = x.size(1) / groups;
  for (int i = 2; i < x.ndim(); ++i) rest *= x.size(i);
  const NDArray rows = invoke(reshape_operator(), {x}, ReshapeAttributes{{x.size(0), groups, rest}, true});
  const NDArray y = invoke(standardize_operator(), {rows}, StandardizeAttributes{1, true, epsilon});
  return scaled(invoke(reshape_operator(), {y}, ReshapeAttributes{x.shape(), true}), by_channel(scale, x),
                by_channel(shift, x));
}

}  // namespace

OpDef standardize_op() {
  return OpDef("standardize")
      .attributes<StandardizeAttributes>()
      .input("x")
      .output("y")
      .auxiliary_output("inverse_deviation")
      .saves_outputs({0, 1})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        const int axes = of(attributes).axes;
        require(is_floating(x.dtype()), "[standardize] x is ", x.describe(), ", expected a floating type");
        require(axes >= 1 && axes <= x.ndim(), "[standardize] axes is ", axes, " for x, ", x.describe());
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}, {leading(x.shape(), axes), wide_type(x.dtype())}};
      })
      .cpu(standardize_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(standardize_backward_operator(), {gradients[0], call.outputs[0], call.outputs[1]},
                       call.attribute_data)[0]};
      })
      .text(text);
}

OpDef standardize_backward_op() {
  return OpDef("standardize_backward")
      .attributes<StandardizeAttributes>()
      .input("gradient")
      .input("y")
      .input("inverse_deviation")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto& [gradient, y, deviation] = std::tie(inputs[0], inputs[1], inputs[2]);
        const int axes = of(attributes).axes;
        require(is_floating(y.dtype()), "[standardize_backward] y is ", y.describe(), ", expected a floating type");
        require(axes >= 1 && axes <= y.ndim(), "[standardize_backward] axes is ", axes, " for y, ", y.describe());
        require(gradient.shape() == y.shape() && gradient.dtype() == y.dtype() &&
                    deviation.shape() == leading(y.shape(), axes) && deviation.dtype() == wide_type(y.dtype()),
                "[standardize_backward] gradient is ", gradient.describe(), " with deviations ", deviation.describe(),
                ", which does not fit ", y.describe());
        return std::vector<ArraySpec>{{y.shape(), y.dtype()}};
      })
      .cpu(backward_cpu)
      .text(text);
}

NDArray layer_norm(const NDArray& x, const NDArray& scale, const NDArray& shift, double epsilon) {
  return over_last("layer_norm", x, scale, shift, {1, true, epsilon});
}
NDArray rms_norm(const NDArray& x, const NDArray& scale, double epsilon) {
  return over_last("rms_norm", x, scale, NDArray(), {1, false, epsilon});
}
NDArray group_norm(const NDArray& x, int groups, const NDArray& scale, const NDArray& shift, double epsilon) {
  return by_groups("group_norm", x, groups, scale, shift, epsilon);
}
NDArray instance_norm(const NDArray& x, const NDArray& scale, const NDArray& shift, double epsilon) {
  return by_groups("instance_norm", x, x.ndim() >= 2 ? std::max<std::int64_t>(1, x.size(1)) : 1, scale, shift, epsilon);
}
NDArray l2_normalize(const NDArray& x, int axis, double epsilon) {
  const NDArray wide =
      is_half(x.dtype()) ? cast(x, DType::kFloat32) : x;  // epsilon is 0 and large norms infinite in float16
  const NDArray result = wide / maximum(norm(wide, 2, {axis}, true), epsilon);
  return is_half(x.dtype()) ? cast(result, x.dtype()) : result;
}

}  // namespace paceline
