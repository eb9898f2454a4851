#include "normalize/normalize.h"

#include "binary/binary.h"
#include "copy/copy.h"
#include "reduce/reduce.h"
#include "reshape/reshape.h"
#include "shared/lanes.h"
#include "shared/vector_map.h"
#include "shared/wide.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>
#include <cmath>

namespace paceline {

const OpDef& standardize_operator();
const OpDef& standardize_backward_operator();
const OpDef& standardize_backward_parameters_operator();
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
    for (std::int64_t i = begin; i < end; ++i) vector_code([&]() PACELINE_INLINE { row(i, i * size, size); });
  });
}

// Inputs: x and, where they are given, scale and shift. Outputs: the result, and mean and 1 / deviation of each row.
void standardize_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                     const void* attributes) {
  visit_floating(in[0].dtype, "standardize", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const T* scale = in.size() > 1 ? in[1].as<const T>() : nullptr;
    const T* shift = in.size() > 2 ? in[2].as<const T>() : nullptr;
    for_each_row(in[0], attributes, [&](std::int64_t i, std::int64_t first, std::int64_t size) PACELINE_INLINE {
      const T* x = in[0].as<const T>() + first;
      T* y = out[0].as<T>() + first;
      const auto load = [](const T* from, std::int64_t k) { return static_cast<A>(from[k]); };
      const A count = static_cast<A>(size);
      const A mean =
          of(attributes).centered ? sum_lanes<A>(size, [=](std::int64_t k) { return load(x, k); }) / count : A(0);
      const A variance =
          sum_lanes<A>(size, [=](std::int64_t k) { return (load(x, k) - mean) * (load(x, k) - mean); }) / count;
      const A inverse = A(1) / std::sqrt(variance + static_cast<A>(of(attributes).epsilon));
      out[1].as<A>()[i] = mean;
      out[2].as<A>()[i] = inverse;
      if (shift) {
        for (std::int64_t k = 0; k < size; ++k)
          y[k] = T((load(x, k) - mean) * inverse * load(scale, k) + load(shift, k));
      } else if (scale) {
        for (std::int64_t k = 0; k < size; ++k) y[k] = T((load(x, k) - mean) * inverse * load(scale, k));
      } else {
        for (std::int64_t k = 0; k < size; ++k) y[k] = T((load(x, k) - mean) * inverse);
      }
    });
  });
}

// Inputs: gradient, x, mean, 1 / deviation and, where it is given, scale.
void backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  visit_floating(in[0].dtype, "standardize_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for_each_row(in[0], attributes, [&](std::int64_t i, std::int64_t first, std::int64_t size) PACELINE_INLINE {
      const T* g = in[0].as<const T>() + first;
      const T* x = in[1].as<const T>() + first;
      T* dx = out[0].as<T>() + first;
      const A mean = in[2].as<const A>()[i], inverse = in[3].as<const A>()[i], count = static_cast<A>(size);
      const auto standard = [=](std::int64_t k) { return (static_cast<A>(x[k]) - mean) * inverse; };
      const auto run = [&](const auto& gradient) PACELINE_INLINE {
        const A shared = of(attributes).centered ? sum_lanes<A>(size, gradient) / count : A(0);
        const A along = sum_lanes<A>(size, [=](std::int64_t k) { return gradient(k) * standard(k); }) / count;
        for (std::int64_t k = 0; k < size; ++k) dx[k] = T(inverse * (gradient(k) - shared - standard(k) * along));
      };
      if (in.size() > 4)
        run([g, scale = in[4].as<const T>()](std::int64_t k) {
          return static_cast<A>(g[k]) * static_cast<A>(scale[k]);
        });
      else
        run([g](std::int64_t k) { return static_cast<A>(g[k]); });
    });
  });
}

// Inputs: gradient, x, mean, 1 / deviation. Outputs: the gradients of scale and shift, which are sums over the rows.
// Groups of kRows rows are summed in accumulator_t, and the groups in float64. The work is cut by columns and, where
// these are few, by rows too. The order of the sums does not depend on the number of threads.
void parameters_backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                             const void*) {
  constexpr std::int64_t kColumns = 64, kRows = 128, kUnits = 16;
  const std::int64_t size = out[0].size(), rows = in[2].size();
  const std::int64_t tiles = (size + kColumns - 1) / kColumns;
  const std::int64_t most_pieces = kUnits / std::max<std::int64_t>(1, tiles);
  const std::int64_t pieces = std::clamp<std::int64_t>(rows / (4 * kRows), 1, std::max<std::int64_t>(1, most_pieces));
  const std::int64_t rows_of_piece = (rows / pieces / kRows + 1) * kRows;
  struct Sums {
    double scale[kColumns]{}, shift[kColumns]{};
  };
  visit_floating(in[0].dtype, "standardize_backward_parameters", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const T* g = in[0].as<const T>();
    const T* x = in[1].as<const T>();
    const A *mean = in[2].as<const A>(), *inverse = in[3].as<const A>();
    const auto add_up = [&](Sums& sums, std::int64_t column, std::int64_t width, std::int64_t begin, std::int64_t end)
                            PACELINE_INLINE {
                              for (std::int64_t first = begin; first < end; first += kRows) {
                                A some_scale[kColumns]{}, some_shift[kColumns]{};
                                for (std::int64_t i = first; i < std::min(first + kRows, end); ++i) {
                                  const T *of_g = g + i * size + column, *of_x = x + i * size + column;
                                  for (std::int64_t k = 0; k < width; ++k) {
                                    const A gradient = static_cast<A>(of_g[k]);
                                    some_scale[k] += gradient * ((static_cast<A>(of_x[k]) - mean[i]) * inverse[i]);
                                    some_shift[k] += gradient;
                                  }
                                }
                                for (std::int64_t k = 0; k < width; ++k) {
                                  sums.scale[k] += static_cast<double>(some_scale[k]);
                                  sums.shift[k] += static_cast<double>(some_shift[k]);
                                }
                              }
                            };
    const auto width_of = [&](std::int64_t tile) { return std::min(kColumns, size - tile * kColumns); };
    const auto write = [&](const Sums& sums, std::int64_t tile) {
      for (std::int64_t k = 0; k < width_of(tile); ++k) {
        out[0].as<T>()[tile * kColumns + k] = T(static_cast<A>(sums.scale[k]));
        out[1].as<T>()[tile * kColumns + k] = T(static_cast<A>(sums.shift[k]));
      }
    };
    Sums of_pieces[kUnits];
    const std::int64_t smallest = detail::kElementsPerThread / std::max<std::int64_t>(1, width_of(0) * rows / pieces);
    detail::parallel_ranges(tiles * pieces, smallest, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t unit = begin; unit < end; ++unit) {
        const std::int64_t tile = unit / pieces, first = unit % pieces * rows_of_piece;
        Sums sums;
        vector_code([&]() PACELINE_INLINE {
          add_up(sums, tile * kColumns, width_of(tile), first, std::min(rows, first + rows_of_piece));
        });
        if (pieces == 1)
          write(sums, tile);
        else
          of_pieces[unit] = sums;
      }
    });
    for (std::int64_t tile = 0; pieces > 1 && tile < tiles; ++tile) {
      Sums& all = of_pieces[tile * pieces];
      for (std::int64_t piece = 1; piece < pieces; ++piece)
        for (std::int64_t k = 0; k < kColumns; ++k) {
          all.scale[k] += of_pieces[tile * pieces + piece].scale[k];
          all.shift[k] += of_pieces[tile * pieces + piece].shift[k];
        }
      write(all, tile);
    }
  });
}

AttributeText text(const void* attributes) {
  const auto& [axes, centered, epsilon] = of(attributes);
  return {{"axes", str(axes)}, {"centered", centered ? "1" : "0"}, {"epsilon", str(epsilon)}};
}

// The sizes of the last `axes` axes.
Shape last_axes(const Shape& shape, int axes) {
  return Shape(std::span<const std::int64_t>(shape.end() - axes, static_cast<std::size_t>(axes)));
}

void check_axes(const char* name, const NDArray& x, int axes) {
  require(is_floating(x.dtype()), "[", name, "] x is ", x.describe(), ", expected a floating type");
  require(axes >= 1 && axes <= x.ndim(), "[", name, "] axes is ", axes, " for x, ", x.describe());
}

// Checks the inputs of both backward operators: gradient, x, mean and inverse_deviation.
void check_backward(const char* name, const std::vector<NDArray>& inputs, int axes) {
  const auto& [gradient, x, mean, deviation] = std::tie(inputs[0], inputs[1], inputs[2], inputs[3]);
  check_axes(name, x, axes);
  const auto fits = [&x = x, axes](const NDArray& of_rows) {
    return of_rows.shape() == leading(x.shape(), axes) && of_rows.dtype() == wide_type(x.dtype());
  };
  require(gradient.shape() == x.shape() && gradient.dtype() == x.dtype() && fits(mean) && fits(deviation), "[", name,
          "] gradient is ", gradient.describe(), " with means ", mean.describe(), " and deviations ",
          deviation.describe(), ", which does not fit ", x.describe());
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
  const Shape last = last_axes(x.shape(), how.axes);
  check_parameter(name, "scale", x, scale, last);
  check_parameter(name, "shift", x, shift, last);
  if (scale.is_none()) return scaled(invoke(standardize_operator(), {x, NDArray(), NDArray()}, how), scale, shift);
  return invoke(standardize_operator(), {x, scale, shift}, how);
}

// Reshapes a parameter of shape (channels) to (channels, 1, ...), so that it broadcasts along axis 1 of x.
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
  const NDArray y =
      invoke(standardize_operator(), {rows, NDArray(), NDArray()}, StandardizeAttributes{1, true, epsilon});
  return scaled(invoke(reshape_operator(), {y}, ReshapeAttributes{x.shape(), true}), by_channel(scale, x),
                by_channel(shift, x));
}

}  // namespace

OpDef standardize_op() {
  return OpDef("standardize")
      .attributes<StandardizeAttributes>()
      .input("x")
      .optional_input("scale")
      .optional_input("shift")
      .output("y")
      .auxiliary_output("mean")
      .auxiliary_output("inverse_deviation")
      .saves_inputs({0, 1})
      .saves_outputs({1, 2})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto& [x, scale, shift] = std::tie(inputs[0], inputs[1], inputs[2]);
        const int axes = of(attributes).axes;
        check_axes("standardize", x, axes);
        check_parameter("standardize", "scale", x, scale, last_axes(x.shape(), axes));
        check_parameter("standardize", "shift", x, shift, last_axes(x.shape(), axes));
        require(shift.is_none() || !scale.is_none(), "[standardize] shift without scale, for x, ", x.describe());
        const ArraySpec of_rows{leading(x.shape(), axes), wide_type(x.dtype())};
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}, of_rows, of_rows};
      })
      .cpu(standardize_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        const std::vector<NDArray> all{gradients[0].contiguous(), call.inputs[0], call.outputs[1], call.outputs[2]};
        std::vector<Gradient> result(3);
        if (call.wants_gradient(0)) {
          std::vector<NDArray> inputs = all;
          inputs.push_back(call.inputs[1]);
          result[0] = invoke(standardize_backward_operator(), inputs, call.attribute_data)[0];
        }
        const bool scale = !call.inputs[1].is_none() && call.wants_gradient(1);
        const bool shift = call.input_specs[2].shape.ndim() > 0 && call.wants_gradient(2);
        if (scale || shift) {
          const std::vector<NDArray> both =
              invoke(standardize_backward_parameters_operator(), all, call.attribute_data);
          if (scale) result[1] = both[0];
          if (shift) result[2] = both[1];
        }
        return result;
      })
      .text(text);
}

OpDef standardize_backward_op() {
  return OpDef("standardize_backward")
      .attributes<StandardizeAttributes>()
      .input("gradient")
      .input("x")
      .input("mean")
      .input("inverse_deviation")
      .optional_input("scale")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[1];
        check_backward("standardize_backward", inputs, of(attributes).axes);
        check_parameter("standardize_backward", "scale", x, inputs[4], last_axes(x.shape(), of(attributes).axes));
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .cpu(backward_cpu)
      .text(text);
}

OpDef standardize_backward_parameters_op() {
  return OpDef("standardize_backward_parameters")
      .attributes<StandardizeAttributes>()
      .input("gradient")
      .input("x")
      .input("mean")
      .input("inverse_deviation")
      .output("scale_gradient")
      .output("shift_gradient")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        check_backward("standardize_backward_parameters", inputs, of(attributes).axes);
        const ArraySpec parameter{last_axes(inputs[1].shape(), of(attributes).axes), inputs[1].dtype()};
        return std::vector<ArraySpec>{parameter, parameter};
      })
      .cpu(parameters_backward_cpu)
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
