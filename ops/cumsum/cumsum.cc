#include "cumsum/cumsum.h"

#include "shared/rows.h"
#include "shared/without_axes.h"

#include <paceline/detail/elementwise.h>
#include <paceline/detail/wrapping.h>

#include <algorithm>

namespace paceline {

const OpDef& cumsum_operator();

namespace {

const CumsumAttributes& of(const void* attributes) { return *static_cast<const CumsumAttributes*>(attributes); }

void cumsum_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const Shape& shape = in[0].shape;
  const AxisView view = around_axis(shape, normalize_axis(of(attributes).axis, shape.ndim(), "cumsum"));
  const std::int64_t first = of(attributes).reverse ? (view.size - 1) * view.inner : 0;
  const std::int64_t step = of(attributes).reverse ? -view.inner : view.inner;
  const std::int64_t smallest = std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, view.size));
  visit_dtype(in[0].dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, bool>) {
      using A = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
      detail::parallel_ranges(view.lines(), smallest, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t line = begin; line < end; ++line) {
          const std::int64_t start = view.first(line) + first;
          const T* x = in[0].as<const T>() + start;
          T* y = out[0].as<T>() + start;
          A total = 0;
          for (std::int64_t i = 0; i < view.size; ++i) {
            total = detail::wrapping_sum(total, static_cast<A>(detail::load(x[i * step])));
            y[i * step] = detail::convert<T>(total);
          }
        }
      });
    }
  });
}

}  // namespace

OpDef cumsum_op() {
  return OpDef("cumsum")
      .attributes<CumsumAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        require(x.dtype() != DType::kBool, "[cumsum] x is ", x.describe(), ", cast it first");
        normalize_axis(of(attributes).axis, x.ndim(), "cumsum");
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .cpu(cumsum_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const auto& [axis, reverse] = call.attributes<CumsumAttributes>();
        return {cumsum(gradients[0], axis, !reverse)};
      })
      .text([](const void* attributes) {
        return AttributeText{{"axis", str(of(attributes).axis)}, {"reverse", of(attributes).reverse ? "1" : "0"}};
      });
}

NDArray cumsum(const NDArray& x, int axis, bool reverse) {
  return with_an_axis("cumsum", x, axis, [=](const NDArray& a) {
    return invoke(cumsum_operator(), {a}, CumsumAttributes{axis, reverse});
  });
}

}  // namespace paceline
