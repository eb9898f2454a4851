#include "sort/order.h"

#include "index/index.h"
#include "shared/rows.h"
#include "shared/without_axes.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace paceline {

const OpDef& sort_operator();
const OpDef& top_k_operator();

namespace {

template <class Attributes>
void sort_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
              const void* attributes) {
  const Order order = order_of(*static_cast<const Attributes*>(attributes));
  const Shape& shape = in[0].shape;
  const int axis = normalize_axis(order.axis, shape.ndim(), "sort");
  const AxisView view = around_axis(shape, axis);
  const std::int64_t kept = out[0].shape[axis];
  auto* const places = static_cast<std::int64_t*>(context.workspace);
  std::vector<std::int64_t> all(static_cast<std::size_t>(kept < view.size ? view.size : 0));
  std::iota(all.begin(), all.end(), 0);
  visit_dtype(in[0].dtype, [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    for (std::int64_t line = 0; line < view.outer * view.inner; ++line) {
      const std::int64_t outer = line / view.inner, inner = line % view.inner;
      const T* x = in[0].as<const T>() + outer * view.size * view.inner + inner;
      const auto comes_first = [&](std::int64_t i, std::int64_t j) {
        return is_first(order.descending, static_cast<A>(x[i * view.inner]), i, static_cast<A>(x[j * view.inner]), j);
      };
      if (kept < view.size) {
        std::partial_sort_copy(all.begin(), all.end(), places, places + kept, comes_first);
      } else {
        std::iota(places, places + kept, 0);
        std::sort(places, places + kept, comes_first);
      }
      const std::int64_t to = outer * kept * view.inner + inner;
      for (std::int64_t i = 0; i < kept; ++i) {
        out[0].as<T>()[to + i * view.inner] = x[places[i] * view.inner];
        out[1].as<std::int64_t>()[to + i * view.inner] = places[i];
      }
    }
  });
}

template <class Attributes>
OpDef ordering(const char* name) {
  return OpDef(name)
      .attributes<Attributes>()
      .input("x")
      .output("values")
      .output("positions")
      .saves_outputs({1})
      .infer([name](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        const Order order = order_of(*static_cast<const Attributes*>(attributes));
        const int axis = normalize_axis(order.axis, x.ndim(), name);
        Shape shape = x.shape();
        if constexpr (std::is_same_v<Attributes, TopKAttributes>) {
          require(order.count >= 0 && order.count <= x.size(axis), "[", name, "] k is ", order.count,
                  ", expected 0 to ", x.size(axis), ", the size of axis ", axis, " of ", x.describe());
          shape[axis] = order.count;
        }
        return std::vector<ArraySpec>{{shape, x.dtype()}, {shape, DType::kInt64}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        const Order order = order_of(*static_cast<const Attributes*>(attributes));
        return static_cast<std::size_t>(kept_of(order, inputs[0].size(order.axis))) * sizeof(std::int64_t);
      })
      .cpu(sort_cpu<Attributes>)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const NDArray& gradient = gradients[0];
        if (gradient.is_none()) return {Gradient()};
        const NDArray zeros =
            NDArray::zeros(call.input_specs[0].shape, gradient.dtype(), gradient.device(), gradient.engine());
        return {scatter_add(zeros, call.outputs[1], gradient, order_of(call.attributes<Attributes>()).axis)};
      });
}

template <class Attributes>
std::shared_ptr<const void> shared(const Attributes& attributes) {
  return std::make_shared<const Attributes>(attributes);
}

}  // namespace

OpDef sort_op() {
  return ordering<SortAttributes>("sort").text([](const void* attributes) {
    const auto& [axis, descending] = *static_cast<const SortAttributes*>(attributes);
    return AttributeText{{"axis", str(axis)}, {"descending", descending ? "1" : "0"}};
  });
}

OpDef top_k_op() {
  return ordering<TopKAttributes>("top_k").text([](const void* attributes) {
    const auto& [k, axis, largest] = *static_cast<const TopKAttributes*>(attributes);
    return AttributeText{{"k", str(k)}, {"axis", str(axis)}, {"largest", largest ? "1" : "0"}};
  });
}

Sorted sort(const NDArray& x, int axis, bool descending) {
  const std::vector<NDArray> result = with_an_axis("sort", x, axis, [=](const NDArray& a) {
    return invoke(sort_operator(), {a}, shared(SortAttributes{axis, descending}));
  });
  return {result[0], result[1]};
}

NDArray argsort(const NDArray& x, int axis, bool descending) { return sort(x, axis, descending).positions; }

Sorted top_k(const NDArray& x, std::int64_t k, int axis, bool largest) {
  require(x.is_none() || x.ndim() > 0 || k == 1, "[top_k] k is ", k, ", expected 1 for an array without axes");
  const std::vector<NDArray> result = with_an_axis("top_k", x, axis, [=](const NDArray& a) {
    return invoke(top_k_operator(), {a}, shared(TopKAttributes{k, axis, largest}));
  });
  return {result[0], result[1]};
}

}  // namespace paceline
