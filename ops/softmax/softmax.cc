#include "softmax/softmax.h"

#include "binary/binary.h"
#include "copy/copy.h"
#include "shared/fast_math.h"
#include "shared/lanes.h"
#include "shared/rows.h"
#include "shared/wide.h"
#include "shared/without_axes.h"
#include "where/where.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>
#include <cmath>

namespace paceline {

const OpDef& softmax_operator();
const OpDef& softmax_backward_operator();
const OpDef& log_softmax_operator();
const OpDef& log_softmax_backward_operator();

namespace {

int axis_of(const void* attributes) { return static_cast<const SoftmaxAttributes*>(attributes)->axis; }

// Calls row(first, stride, size) for each line of elements along the axis of the attributes.
template <class Row>
void for_each_row(const Tensor& x, const void* attributes, const Row& row) {
  const AxisView view = around_axis(x.shape, normalize_axis(axis_of(attributes), x.shape.ndim(), "softmax"));
  const std::int64_t smallest = std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, view.size));
  detail::parallel_ranges(view.size == 0 ? 0 : view.lines(), smallest, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) row(view.first(i), view.inner, view.size);
  });
}

template <bool kLog>
void softmax_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  visit_floating(in[0].dtype, "softmax", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for_each_row(in[0], attributes, [&](std::int64_t first, std::int64_t stride, std::int64_t size) {
      const T* x = in[0].as<const T>() + first;
      T* y = out[0].as<T>() + first;
      const auto load = [=](std::int64_t i) { return static_cast<A>(x[i * stride]); };
      const A top = fold_lanes(size, load(0), load, [](A a, A b) { return b > a || b != b ? b : a; });
      const A total = sum_lanes<A>(size, [=](std::int64_t i) { return fast_exp(load(i) - top); });
      if constexpr (kLog) {
        // top and log(total) are subtracted one by one. Where top is large, their sum loses the logarithm's digits.
        const A rest = std::log(total);
        for (std::int64_t i = 0; i < size; ++i) y[i * stride] = T(load(i) - top - rest);
      } else {
        const A scale = A(1) / total;
        for (std::int64_t i = 0; i < size; ++i) y[i * stride] = T(fast_exp(load(i) - top) * scale);
      }
    });
  });
}

template <bool kLog>
void softmax_backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                          const void* attributes) {
  visit_floating(in[0].dtype, "softmax_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for_each_row(in[0], attributes, [&](std::int64_t first, std::int64_t stride, std::int64_t size) {
      const T* dy = in[0].as<const T>() + first;
      const T* y = in[1].as<const T>() + first;
      T* dx = out[0].as<T>() + first;
      const A total = sum_lanes<A>(size, [=](std::int64_t i) {
        const A gradient = static_cast<A>(dy[i * stride]);
        return kLog ? gradient : gradient * static_cast<A>(y[i * stride]);
      });
      for (std::int64_t i = 0; i < size; ++i) {
        const A gradient = static_cast<A>(dy[i * stride]);
        const A result = static_cast<A>(y[i * stride]);
        dx[i * stride] = T(kLog ? gradient - fast_exp(result) * total : result * (gradient - total));
      }
    });
  });
}

AttributeText text(const void* attributes) { return {{"axis", str(axis_of(attributes))}}; }

OpDef forward(const char* name, const OpDef& (*backward)()) {
  return OpDef(name)
      .attributes<SoftmaxAttributes>()
      .input("x")
      .saves_outputs({0})
      .infer([name](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        require(is_floating(x.dtype()), "[", name, "] x is ", name_of(x.dtype()), ", expected a floating type");
        normalize_axis(axis_of(attributes), x.ndim(), name);
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .gradient([backward](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(backward(), {gradients[0], call.outputs[0]}, call.attribute_data)[0]};
      })
      .text(text);
}

OpDef backward(const char* name) {
  return OpDef(name)
      .attributes<SoftmaxAttributes>()
      .input("gradient")
      .input("y")
      .infer([name](const std::vector<NDArray>& inputs, const void*) {
        require(inputs[0].shape() == inputs[1].shape() && inputs[0].dtype() == inputs[1].dtype(), "[", name,
                "] gradient is ", inputs[0].describe(), ", expected ", inputs[1].describe());
        return std::vector<ArraySpec>{{inputs[1].shape(), inputs[1].dtype()}};
      })
      .text(text);
}

}  // namespace

OpDef softmax_op() { return forward("softmax", softmax_backward_operator).cpu(softmax_cpu<false>); }
OpDef softmax_backward_op() { return backward("softmax_backward").cpu(softmax_backward_cpu<false>); }
OpDef log_softmax_op() { return forward("log_softmax", log_softmax_backward_operator).cpu(softmax_cpu<true>); }
OpDef log_softmax_backward_op() { return backward("log_softmax_backward").cpu(softmax_backward_cpu<true>); }

NDArray softmax(const NDArray& x, int axis) {
  return with_an_axis("softmax", x, axis,
                      [axis](const NDArray& a) { return invoke(softmax_operator(), {a}, SoftmaxAttributes{axis}); });
}

NDArray log_softmax(const NDArray& x, int axis) {
  return with_an_axis("log_softmax", x, axis, [axis](const NDArray& a) {
    return invoke(log_softmax_operator(), {a}, SoftmaxAttributes{axis});
  });
}

namespace {

NDArray masked(const char* name, NDArray (*of)(const NDArray&, int), const NDArray& x, const NDArray& mask,
               double temperature, int axis) {
  require(temperature > 0, "[", name, "] temperature is ", temperature, ", expected a positive number, for x, ",
          x.describe());
  require(mask.is_none() || (mask.dtype() == DType::kBool && broadcast(mask.shape(), x.shape()) == x.shape()), "[",
          name, "] mask is ", mask.is_none() ? "none" : mask.describe(), ", expected bool that broadcasts to x, ",
          x.describe());
  const bool wider = temperature != 1 && is_half(x.dtype());
  NDArray scores = wider ? cast(x, DType::kFloat32) : x;
  if (temperature != 1) scores = scores / temperature;
  if (!mask.is_none()) scores = where(mask, scores, -std::numeric_limits<double>::infinity());
  const NDArray result = of(scores, axis);
  return wider ? cast(result, x.dtype()) : result;
}

}  // namespace

NDArray softmax(const NDArray& x, const NDArray& mask, double temperature, int axis) {
  return masked("softmax", softmax, x, mask, temperature, axis);
}

NDArray log_softmax(const NDArray& x, const NDArray& mask, double temperature, int axis) {
  return masked("log_softmax", log_softmax, x, mask, temperature, axis);
}

}  // namespace paceline
