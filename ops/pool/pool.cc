#include "pool/pool.h"

#include "pool/window.h"
#include "shared/lanes.h"
#include "shared/planes.h"
#include "shared/rows.h"

namespace paceline {

const OpDef& max_pool_operator();
const OpDef& max_pool_backward_operator();
const OpDef& average_pool_operator();
const OpDef& average_pool_backward_operator();

namespace {

constexpr std::int64_t kLimit = std::int64_t{1} << 31;  // places of a plane, which positions count

WindowAxis make_axis(const char* name, std::int64_t size, int i, const PoolAttributes& how) {
  if (how.result.ndim() > 0) {
    require(how.result[i] > 0, "[", name, "] result ", how.result, " must be positive");
    return {.size = size, .count = how.result[i], .equal_parts = true};
  }
  const std::int64_t kernel = how.kernel[i];
  const std::int64_t stride = how.stride.ndim() == 0 ? kernel : how.stride[i];
  const std::int64_t padding = how.padding.ndim() == 0 ? 0 : how.padding[i];
  require(kernel > 0 && stride > 0 && std::max(kernel, stride) < kLimit, "[", name, "] kernel ", how.kernel,
          " and stride ", how.stride, " must be positive and less than 2^31");
  require(padding >= 0 && padding < kernel, "[", name, "] padding ", how.padding,
          " must be at least 0 and less than the kernel ", how.kernel);
  const std::int64_t room = size + 2 * padding - kernel;
  require(room >= 0, "[", name, "] kernel ", how.kernel, " is larger than the padded x, which has ", size,
          " places along spatial axis ", i);
  std::int64_t count = room / stride + 1;
  if (how.ceil_mode && room % stride != 0 && count * stride < size + padding) ++count;
  return {.size = size, .kernel = kernel, .stride = stride, .padding = padding, .count = count};
}

}  // namespace

Windows make_windows(const char* name, const Shape& x, const PoolAttributes& how) {
  require(x.ndim() >= 3 && x.ndim() <= 5, "[", name, "] x has ", x.ndim(), " dimensions, expected 3 to 5");
  const int axes = x.ndim() - 2;
  const auto fits = [axes](const Shape& given, bool optional) {
    return given.ndim() == axes || (optional && given.ndim() == 0);
  };
  require(fits(how.result, true) && fits(how.kernel, how.result.ndim() > 0) && fits(how.stride, true) &&
              fits(how.padding, true),
          "[", name, "] kernel ", how.kernel, ", stride ", how.stride, ", padding ", how.padding, " and result ",
          how.result, " need one number for each spatial axis of x ", x);
  Windows windows{.planes = checked_product(name, x[0], x[1])};
  std::int64_t from = 1, to = 1;
  for (int i = 0; i < axes; ++i) {
    require(x[2 + i] > 0 && x[2 + i] < kLimit, "[", name, "] x has shape ", x,
            ", expected planes with at least one element and less than 2^31");
    const WindowAxis axis = make_axis(name, x[2 + i], i, how);
    from = checked_product(name, from, axis.size);
    to = checked_product(name, to, axis.count);
    windows.axes[static_cast<std::size_t>(3 - axes + i)] = axis;
  }
  require(std::max(from, to) < kLimit, "[", name, "] planes of 2^31 elements and more are not supported");
  return windows;
}

namespace {

// The backward operators need the shape that was pooled.
struct PoolBackwardAttributes : PoolAttributes {
  Shape x;
};

const PoolAttributes& pool_of(const void* attributes) { return *static_cast<const PoolAttributes*>(attributes); }

const PoolBackwardAttributes& backward_of(const void* attributes) {
  return *static_cast<const PoolBackwardAttributes*>(attributes);
}

// Calls body(number, place along each axis) for the windows of a plane in order.
template <class Body>
void for_each_window(const Windows& windows, const Body& body) {
  std::int64_t number = 0;
  for (std::int64_t z = 0; z < windows.axes[0].count; ++z)
    for (std::int64_t y = 0; y < windows.axes[1].count; ++y)
      for (std::int64_t x = 0; x < windows.axes[2].count; ++x) body(number++, std::array{z, y, x});
}

// Calls body(begin, end) for the runs of a plane that lie in one window.
template <class Body>
void for_each_run(const Windows& windows, const std::array<std::int64_t, 3>& window, const Body& body) {
  const auto& [az, ay, ax] = windows.axes;
  const std::int64_t left = ax.begin(window[2]), right = ax.end(window[2]);
  for (std::int64_t z = az.begin(window[0]); z < az.end(window[0]); ++z)
    for (std::int64_t y = ay.begin(window[1]); y < ay.end(window[1]); ++y) {
      const std::int64_t row = (z * ay.size + y) * ax.size;
      body(row + left, row + right);
    }
}

template <class T>
void max_plane(const Windows& windows, const T* x, T* out, std::int32_t* positions) {
  using A = accumulator_t<T>;
  for_each_window(windows, [&](std::int64_t number, const std::array<std::int64_t, 3>& window) {
    std::int64_t best = -1;
    A top = 0;
    for_each_run(windows, window, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const A value = static_cast<A>(x[i]);
        if (value > top || best < 0 || (value != value && top == top)) {
          top = value;
          best = i;
        }
      }
    });
    out[number] = x[best];
    positions[number] = static_cast<std::int32_t>(best);
  });
}

// Windows of 2 x 2 side by side, the usual case, without branches so that it becomes vector code.
template <class T>
void max_plane_2x2(const Windows& windows, const T* x, T* out, std::int32_t* positions) {
  using A = accumulator_t<T>;
  const auto width = static_cast<std::int32_t>(windows.axes[2].size);
  const std::int64_t columns = windows.axes[2].count;
  for (std::int64_t oy = 0; oy < windows.axes[1].count; ++oy) {
    const T* __restrict const upper = x + 2 * oy * width;
    const T* __restrict const lower = upper + width;
    T* __restrict const top_row = out + oy * columns;
    std::int32_t* __restrict const position_row = positions + oy * columns;
    const auto first = static_cast<std::int32_t>(2 * oy) * width;
    for (std::int64_t ox = 0; ox < columns; ++ox) {
      A top = static_cast<A>(upper[2 * ox]);
      std::int32_t at = 0;
      const auto offer = [&](T element, std::int32_t place) {
        const A value = static_cast<A>(element);
        const std::int32_t taken = -static_cast<std::int32_t>(!(value <= top)) & -static_cast<std::int32_t>(top == top);
        at = taken ? place : at;
        top = taken ? value : top;
      };
      offer(upper[2 * ox + 1], 1);
      offer(lower[2 * ox], width);
      offer(lower[2 * ox + 1], width + 1);
      top_row[ox] = T(top);
      position_row[ox] = first + static_cast<std::int32_t>(2 * ox) + at;
    }
  }
}

bool is_2x2(const Windows& windows) {
  const auto pairs = [](const WindowAxis& axis) {
    return !axis.equal_parts && axis.kernel == 2 && axis.stride == 2 && axis.padding == 0 &&
           2 * axis.count <= axis.size;
  };
  return windows.axes[0].size == 1 && windows.axes[0].count == 1 && pairs(windows.axes[1]) && pairs(windows.axes[2]);
}

// Outputs: maxima, their positions in the plane.
void max_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const Windows windows = make_windows("max_pool", in[0].shape, pool_of(attributes));
  visit_floating(in[0].dtype, "max_pool", [&]<class T>(TypeTag<T>) {
    const auto plane = is_2x2(windows) ? max_plane_2x2<T> : max_plane<T>;
    for_each_plane(windows.planes, windows.input_places(), [&](std::int64_t i) {
      plane(windows, in[0].as<const T>() + i * windows.input_places(), out[0].as<T>() + i * windows.output_places(),
            out[1].as<std::int32_t>() + i * windows.output_places());
    });
  });
}

// Inputs: gradient, positions.
void max_backward_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                      const void* attributes) {
  const Windows windows = make_windows("max_pool_backward", out[0].shape, pool_of(attributes));
  const std::int64_t count = windows.output_places();
  sum_into_planes(in[0], out[0], context.workspace, [&]<class A>(std::int64_t i, const auto* gradient, A* dx) {
    const std::int32_t* const positions = in[1].as<const std::int32_t>() + i * count;
    for (std::int64_t k = 0; k < count; ++k) dx[positions[k]] += static_cast<A>(gradient[k]);
  });
}

void average_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const PoolAttributes& how = pool_of(attributes);
  const Windows windows = make_windows("average_pool", in[0].shape, how);
  visit_floating(in[0].dtype, "average_pool", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for_each_plane(windows.planes, windows.input_places(), [&](std::int64_t i) {
      const T* const x = in[0].as<const T>() + i * windows.input_places();
      T* const y = out[0].as<T>() + i * windows.output_places();
      for_each_window(windows, [&](std::int64_t number, const std::array<std::int64_t, 3>& window) {
        double total = 0;
        for_each_run(windows, window, [&](std::int64_t begin, std::int64_t end) {
          const T* const from = x + begin;
          total += static_cast<double>(
              sum_lanes<A>(end - begin, [from](std::int64_t k) { return static_cast<A>(from[k]); }));
        });
        y[number] = T(static_cast<A>(total * average_share<double>(windows, how.count_include_pad, window)));
      });
    });
  });
}

void average_backward_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                          const void* attributes) {
  const PoolAttributes& how = pool_of(attributes);
  const Windows windows = make_windows("average_pool_backward", out[0].shape, how);
  sum_into_planes(in[0], out[0], context.workspace, [&]<class A>(std::int64_t, const auto* gradient, A* dx) {
    for_each_window(windows, [&](std::int64_t number, const std::array<std::int64_t, 3>& window) {
      const A share = static_cast<A>(gradient[number]) * average_share<A>(windows, how.count_include_pad, window);
      for_each_run(windows, window, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t k = begin; k < end; ++k) dx[k] += share;
      });
    });
  });
}

AttributeText text(const void* attributes) {
  const PoolAttributes& how = pool_of(attributes);
  if (how.result.ndim() > 0) return {{"result", how.result.text()}};
  return {{"kernel", how.kernel.text()},
          {"stride", how.stride.text()},
          {"padding", how.padding.text()},
          {"ceil_mode", how.ceil_mode ? "1" : "0"},
          {"count_include_pad", how.count_include_pad ? "1" : "0"}};
}

Shape result_shape(const Shape& x, const Windows& windows) {
  Shape shape = x;
  for (int i = 2; i < x.ndim(); ++i) shape[i] = windows.axes[static_cast<std::size_t>(5 - x.ndim() + i - 2)].count;
  return shape;
}

OpDef forward(const char* name, bool positions) {
  return OpDef(name)
      .attributes<PoolAttributes>()
      .input("x")
      .channels_last()
      .infer([=](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        require(is_floating(x.dtype()), "[", name, "] x is ", name_of(x.dtype()), ", expected a floating type");
        const Shape shape = result_shape(x.shape(), make_windows(name, x.shape(), pool_of(attributes)));
        std::vector<ArraySpec> specs{{shape, x.dtype()}};
        if (positions) specs.push_back({shape, DType::kInt32});
        return specs;
      })
      .text(text);
}

OpDef backward(const char* name, bool positions) {
  OpDef op = OpDef(name).input("gradient");
  if (positions) op = std::move(op).input("positions");
  return std::move(op)
      .attributes<PoolBackwardAttributes>()
      .channels_last()
      .infer([=](const std::vector<NDArray>& inputs, const void* attributes) {
        const Shape& x = backward_of(attributes).x;
        const Shape expected = result_shape(x, make_windows(name, x, pool_of(attributes)));
        for (const NDArray& input : inputs)
          require(input.shape() == expected, "[", name, "] got ", input.describe(), ", which does not fit x of shape ",
                  x);
        return std::vector<ArraySpec>{{x, inputs[0].dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        return plane_workspace(inputs[0].dtype(), backward_of(attributes).x);
      })
      .text(text);
}

std::shared_ptr<const void> backward_attributes(const OpCall& call) {
  return std::make_shared<PoolBackwardAttributes>(
      PoolBackwardAttributes{call.attributes<PoolAttributes>(), call.input_specs[0].shape});
}

Shape one_window(const NDArray& x) {
  Shape shape;
  for (int i = 2; i < x.ndim(); ++i) shape.push_back(1);
  return shape;
}

}  // namespace

OpDef max_pool_op() {
  return forward("max_pool", true)
      .output("out")
      .auxiliary_output("positions")
      .saves_outputs({1})
      .cpu(max_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(max_pool_backward_operator(), {gradients[0], call.outputs[1]}, backward_attributes(call))[0]};
      });
}

OpDef max_pool_backward_op() { return backward("max_pool_backward", true).cpu(max_backward_cpu); }

OpDef average_pool_op() {
  return forward("average_pool", false)
      .cpu(average_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(average_pool_backward_operator(), {gradients[0]}, backward_attributes(call))[0]};
      });
}

OpDef average_pool_backward_op() { return backward("average_pool_backward", false).cpu(average_backward_cpu); }

NDArray max_pool(const NDArray& x, const PoolAttributes& attributes) {
  return invoke(max_pool_operator(), {x}, attributes);
}
NDArray average_pool(const NDArray& x, const PoolAttributes& attributes) {
  return invoke(average_pool_operator(), {x}, attributes);
}
NDArray adaptive_max_pool(const NDArray& x, const Shape& result) { return max_pool(x, {.result = result}); }
NDArray adaptive_average_pool(const NDArray& x, const Shape& result) { return average_pool(x, {.result = result}); }
NDArray global_max_pool(const NDArray& x) { return adaptive_max_pool(x, one_window(x)); }
NDArray global_average_pool(const NDArray& x) { return adaptive_average_pool(x, one_window(x)); }

}  // namespace paceline
