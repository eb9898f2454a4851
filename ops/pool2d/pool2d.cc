#include "pool2d/pool2d.h"

#include "pool2d/window.h"
#include "shared/text.h"

#include <paceline/detail/elementwise.h>

namespace paceline {

const OpDef& max_pool2d_operator();
const OpDef& max_pool2d_backward_operator();
const OpDef& average_pool2d_operator();
const OpDef& average_pool2d_backward_operator();

Windows make_windows(const char* name, const Shape& x, const Pool2dAttributes& attributes) {
  require(x.ndim() == 4, "[", name, "] x has ", x.ndim(), " dimensions, expected 4");
  const auto axis = [&](int i) {
    const auto place = static_cast<std::size_t>(i);
    const std::int64_t size = x[2 + i];
    if (attributes.global) {
      require(size > 0, "[", name, "] x has shape ", x, ", expected planes with at least one element");
      return WindowAxis{size, size, 1, 0, 1};
    }
    const std::int64_t kernel = attributes.kernel[place];
    const std::int64_t stride = attributes.stride[place] == 0 ? kernel : attributes.stride[place];
    const std::int64_t padding = attributes.padding[place];
    require(kernel > 0 && stride > 0, "[", name, "] kernel ", text_of(attributes.kernel), " and stride ",
            text_of(attributes.stride), " must be positive");
    require(padding >= 0 && padding < kernel, "[", name, "] padding ", text_of(attributes.padding),
            " must be at least 0 and less than the kernel ", text_of(attributes.kernel));
    require(size + 2 * padding >= kernel, "[", name, "] kernel ", text_of(attributes.kernel),
            " is larger than the padded x of shape ", x);
    return WindowAxis{size, kernel, stride, padding, (size + 2 * padding - kernel) / stride + 1};
  };
  return {x[0] * x[1], axis(0), axis(1)};
}

namespace {

// The backward operators need the shape that was pooled.
struct PoolBackwardAttributes {
  Pool2dAttributes pool;
  Shape x;
};

const Pool2dAttributes& pool_of(const void* attributes) { return *static_cast<const Pool2dAttributes*>(attributes); }

const PoolBackwardAttributes& backward_of(const void* attributes) {
  return *static_cast<const PoolBackwardAttributes*>(attributes);
}

template <class Plane>
void for_each_plane(const Windows& windows, const Plane& plane) {
  const std::int64_t work = std::max<std::int64_t>(1, windows.input_plane());
  detail::parallel_ranges(windows.planes, std::max<std::int64_t>(1, 65536 / work), [&](auto begin, auto end) {
    for (std::int64_t i = begin; i < end; ++i) plane(i);
  });
}

template <class T>
void max_plane(const Windows& windows, const T* x, T* out, std::int32_t* positions) {
  using A = accumulator_t<T>;
  const std::int64_t width = windows.x.size;
  for (std::int64_t oy = 0; oy < windows.y.count; ++oy) {
    for (std::int64_t ox = 0; ox < windows.x.count; ++ox) {
      const std::int64_t left = windows.x.begin(ox), right = windows.x.end(ox);
      std::int64_t best = windows.y.begin(oy) * width + left;
      A top = static_cast<A>(x[best]);
      for (std::int64_t iy = windows.y.begin(oy); iy < windows.y.end(oy); ++iy) {
        for (std::int64_t ix = left; ix < right; ++ix) {
          const A value = static_cast<A>(x[iy * width + ix]);
          if (value > top || (value != value && top == top)) {
            top = value;
            best = iy * width + ix;
          }
        }
      }
      *out++ = x[best];
      *positions++ = static_cast<std::int32_t>(best);
    }
  }
}

// Windows of 2 x 2 side by side, the usual case, without branches so that it becomes vector code.
template <class T>
void max_plane_2x2(const Windows& windows, const T* x, T* out, std::int32_t* positions) {
  using A = accumulator_t<T>;
  const auto width = static_cast<std::int32_t>(windows.x.size);
  for (std::int64_t oy = 0; oy < windows.y.count; ++oy) {
    const T* __restrict const upper = x + 2 * oy * width;
    const T* __restrict const lower = upper + width;
    T* __restrict const top_row = out + oy * windows.x.count;
    std::int32_t* __restrict const position_row = positions + oy * windows.x.count;
    const auto first = static_cast<std::int32_t>(2 * oy) * width;
    for (std::int64_t ox = 0; ox < windows.x.count; ++ox) {
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

bool is_2x2(const WindowAxis& y, const WindowAxis& x) {
  const auto simple = [](const WindowAxis& axis) { return axis.kernel == 2 && axis.stride == 2 && axis.padding == 0; };
  return simple(y) && simple(x);
}

// Outputs: maxima, their positions in the plane.
void max_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const Windows windows = make_windows("max_pool2d", in[0].shape, pool_of(attributes));
  visit_floating(in[0].dtype, "max_pool2d", [&]<class T>(TypeTag<T>) {
    const auto plane = is_2x2(windows.y, windows.x) ? max_plane_2x2<T> : max_plane<T>;
    for_each_plane(windows, [&](std::int64_t i) {
      plane(windows, in[0].as<const T>() + i * windows.input_plane(), out[0].as<T>() + i * windows.output_plane(),
            out[1].as<std::int32_t>() + i * windows.output_plane());
    });
  });
}

// Inputs: gradient, positions. Windows may overlap: sums in the element type's accumulator would need memory, so that
// float16 gradients are added in float16.
void max_backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                      const void* attributes) {
  const Windows windows = make_windows("max_pool2d_backward", out[0].shape, backward_of(attributes).pool);
  visit_floating(in[0].dtype, "max_pool2d_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for_each_plane(windows, [&](std::int64_t i) {
      const T* const gradient = in[0].as<const T>() + i * windows.output_plane();
      const std::int32_t* const positions = in[1].as<const std::int32_t>() + i * windows.output_plane();
      T* const dx = out[0].as<T>() + i * windows.input_plane();
      std::fill_n(dx, windows.input_plane(), T(0));
      for (std::int64_t k = 0; k < windows.output_plane(); ++k)
        dx[positions[k]] = T(static_cast<A>(dx[positions[k]]) + static_cast<A>(gradient[k]));
    });
  });
}

template <class A>
A average_share(const Windows& windows, bool count_padding, std::int64_t oy, std::int64_t ox) {
  const auto length = [count_padding](const WindowAxis& axis, std::int64_t i) {
    return count_padding ? axis.padded_length(i) : axis.end(i) - axis.begin(i);
  };
  return A(1) / static_cast<A>(length(windows.y, oy) * length(windows.x, ox));
}

void average_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const Windows windows = make_windows("average_pool2d", in[0].shape, pool_of(attributes));
  visit_floating(in[0].dtype, "average_pool2d", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for_each_plane(windows, [&](std::int64_t i) {
      const T* const x = in[0].as<const T>() + i * windows.input_plane();
      T* y = out[0].as<T>() + i * windows.output_plane();
      for (std::int64_t oy = 0; oy < windows.y.count; ++oy) {
        for (std::int64_t ox = 0; ox < windows.x.count; ++ox) {
          A total = 0;
          for (std::int64_t iy = windows.y.begin(oy); iy < windows.y.end(oy); ++iy)
            for (std::int64_t ix = windows.x.begin(ox); ix < windows.x.end(ox); ++ix)
              total += static_cast<A>(x[iy * windows.x.size + ix]);
          *y++ = T(total * average_share<A>(windows, pool_of(attributes).count_include_pad, oy, ox));
        }
      }
    });
  });
}

void average_backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                          const void* attributes) {
  const Pool2dAttributes& pool = backward_of(attributes).pool;
  const Windows windows = make_windows("average_pool2d_backward", out[0].shape, pool);
  visit_floating(in[0].dtype, "average_pool2d_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for_each_plane(windows, [&](std::int64_t i) {
      const T* gradient = in[0].as<const T>() + i * windows.output_plane();
      T* const dx = out[0].as<T>() + i * windows.input_plane();
      std::fill_n(dx, windows.input_plane(), T(0));
      for (std::int64_t oy = 0; oy < windows.y.count; ++oy) {
        for (std::int64_t ox = 0; ox < windows.x.count; ++ox) {
          const A share = static_cast<A>(*gradient++) * average_share<A>(windows, pool.count_include_pad, oy, ox);
          for (std::int64_t iy = windows.y.begin(oy); iy < windows.y.end(oy); ++iy)
            for (std::int64_t ix = windows.x.begin(ox); ix < windows.x.end(ox); ++ix)
              dx[iy * windows.x.size + ix] = T(static_cast<A>(dx[iy * windows.x.size + ix]) + share);
        }
      }
    });
  });
}

AttributeText pool_text(const Pool2dAttributes& pool) {
  if (pool.global) return {{"global", "1"}};
  return {{"kernel", text_of(pool.kernel)},
          {"stride", text_of(pool.stride)},
          {"padding", text_of(pool.padding)},
          {"count_include_pad", pool.count_include_pad ? "1" : "0"}};
}

std::vector<ArraySpec> pooled(const char* name, const NDArray& x, const Pool2dAttributes& attributes, bool positions) {
  require(is_floating(x.dtype()), "[", name, "] x is ", name_of(x.dtype()), ", expected a floating type");
  const Windows windows = make_windows(name, x.shape(), attributes);
  require(windows.input_plane() < (std::int64_t{1} << 31), "[", name,
          "] planes of 2^31 elements and more are not supported");
  const Shape shape{x.size(0), x.size(1), windows.y.count, windows.x.count};
  std::vector<ArraySpec> specs{{shape, x.dtype()}};
  if (positions) specs.push_back({shape, DType::kInt32});
  return specs;
}

OpDef forward(const char* name, bool positions) {
  return OpDef(name)
      .attributes<Pool2dAttributes>()
      .input("x")
      .infer([=](const std::vector<NDArray>& inputs, const void* attributes) {
        return pooled(name, inputs[0], pool_of(attributes), positions);
      })
      .text([](const void* attributes) { return pool_text(pool_of(attributes)); });
}

OpDef backward(const char* name, bool positions) {
  OpDef op = OpDef(name).input("gradient");
  if (positions) op = std::move(op).input("positions");
  return std::move(op)
      .attributes<PoolBackwardAttributes>()
      .infer([=](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto& [pool, x] = backward_of(attributes);
        const Windows windows = make_windows(name, x, pool);
        for (const NDArray& input : inputs)
          require(input.shape() == Shape{x[0], x[1], windows.y.count, windows.x.count}, "[", name, "] got ",
                  input.describe(), ", which does not fit x of shape ", x);
        return std::vector<ArraySpec>{{x, inputs[0].dtype()}};
      })
      .text([](const void* attributes) { return pool_text(backward_of(attributes).pool); });
}

std::shared_ptr<const void> backward_attributes(const OpCall& call) {
  return std::make_shared<PoolBackwardAttributes>(
      PoolBackwardAttributes{call.attributes<Pool2dAttributes>(), call.input_specs[0].shape});
}

}  // namespace

OpDef max_pool2d_op() {
  return forward("max_pool2d", true)
      .output("out")
      .auxiliary_output("positions")
      .saves_outputs({1})
      .cpu(max_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(max_pool2d_backward_operator(), {gradients[0], call.outputs[1]}, backward_attributes(call))[0]};
      });
}

OpDef max_pool2d_backward_op() { return backward("max_pool2d_backward", true).cpu(max_backward_cpu); }

OpDef average_pool2d_op() {
  return forward("average_pool2d", false)
      .cpu(average_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(average_pool2d_backward_operator(), {gradients[0]}, backward_attributes(call))[0]};
      });
}

OpDef average_pool2d_backward_op() { return backward("average_pool2d_backward", false).cpu(average_backward_cpu); }

NDArray max_pool2d(const NDArray& x, const Pool2dAttributes& attributes) {
  return invoke(max_pool2d_operator(), {x}, attributes);
}

NDArray average_pool2d(const NDArray& x, const Pool2dAttributes& attributes) {
  return invoke(average_pool2d_operator(), {x}, attributes);
}

NDArray global_max_pool2d(const NDArray& x) {
  return invoke(max_pool2d_operator(), {x}, Pool2dAttributes{.global = true});
}

NDArray global_average_pool2d(const NDArray& x) {
  return invoke(average_pool2d_operator(), {x}, Pool2dAttributes{.global = true});
}

}  // namespace paceline
