#include "upsample/upsample.h"

#include "shared/planes.h"
#include "shared/rows.h"
#include "upsample/grid.h"

namespace paceline {

const OpDef& upsample_operator();
const OpDef& upsample_backward_operator();

UpsampleGrid make_upsample_grid(const char* name, const Shape& x, const UpsampleAttributes& how) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  require(x.ndim() >= 3 && x.ndim() <= 5 && how.size.ndim() == x.ndim() - 2, "[", name, "] x has shape ", x,
          " and size is ", how.size, ", expected 3 to 5 dimensions and a size for each spatial axis");
  UpsampleGrid grid;
  const int axes = x.ndim() - 2;
  for (int i = 0; i < axes; ++i) {
    const std::int64_t from = x[2 + i], to = how.size[i];
    require(from > 0 && to > 0 && std::max(from, to) < kLimit, "[", name, "] x has shape ", x, " and size is ",
            how.size, ", expected positive sizes less than 2^31");
    grid.axes[static_cast<std::size_t>(3 - axes + i)] = {from, to, how.linear};
  }
  return grid;
}

namespace {

const UpsampleAttributes& of(const void* attributes) { return *static_cast<const UpsampleAttributes*>(attributes); }

Shape result_shape(const Shape& x, const UpsampleAttributes& how) {
  Shape shape{x[0], x[1]};
  for (const std::int64_t size : how.size) shape.push_back(size);
  return shape;
}

// Calls body(place of the result, place of x, weight) for all that a plane of the result is made of.
template <class A, class Body>
void for_each_term(const UpsampleGrid& grid, const Body& body) {
  const auto& [az, ay, ax] = grid.axes;
  std::int64_t number = 0;
  for (std::int64_t z = 0; z < az.to; ++z) {
    const UpsampleSource<A> from_z = az.source<A>(z);
    for (std::int64_t y = 0; y < ay.to; ++y) {
      const UpsampleSource<A> from_y = ay.source<A>(y);
      for (std::int64_t x = 0; x < ax.to; ++x, ++number) {
        const UpsampleSource<A> from_x = ax.source<A>(x);
        for (int i = 0; i < from_z.count; ++i)
          for (int j = 0; j < from_y.count; ++j)
            for (int k = 0; k < from_x.count; ++k)
              body(number, (from_z.place[i] * ay.from + from_y.place[j]) * ax.from + from_x.place[k],
                   from_z.weight[i] * from_y.weight[j] * from_x.weight[k]);
      }
    }
  }
}

void upsample_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const UpsampleGrid grid = make_upsample_grid("upsample", in[0].shape, of(attributes));
  sum_into_planes(in[0], out[0], context.workspace, [&]<class A>(std::int64_t, const auto* x, A* y) {
    for_each_term<A>(grid,
                     [=](std::int64_t to, std::int64_t from, A weight) { y[to] += weight * static_cast<A>(x[from]); });
  });
}

const UpsampleBackwardAttributes& backward_of(const void* attributes) {
  return *static_cast<const UpsampleBackwardAttributes*>(attributes);
}

void backward_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const UpsampleGrid grid = make_upsample_grid("upsample_backward", out[0].shape, of(attributes));
  sum_into_planes(in[0], out[0], context.workspace, [&]<class A>(std::int64_t, const auto* dy, A* dx) {
    for_each_term<A>(
        grid, [=](std::int64_t to, std::int64_t from, A weight) { dx[from] += weight * static_cast<A>(dy[to]); });
  });
}

AttributeText text(const void* attributes) {
  return {{"size", of(attributes).size.text()}, {"linear", of(attributes).linear ? "1" : "0"}};
}

}  // namespace

OpDef upsample_op() {
  return OpDef("upsample")
      .attributes<UpsampleAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        require(is_floating(x.dtype()), "[upsample] x is ", x.describe(), ", expected a floating type");
        make_upsample_grid("upsample", x.shape(), of(attributes));
        return std::vector<ArraySpec>{{result_shape(x.shape(), of(attributes)), x.dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        return plane_workspace(inputs[0].dtype(), result_shape(inputs[0].shape(), of(attributes)));
      })
      .cpu(upsample_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const std::shared_ptr<const void> attributes = std::make_shared<UpsampleBackwardAttributes>(
            UpsampleBackwardAttributes{call.attributes<UpsampleAttributes>(), call.input_specs[0].shape});
        return {invoke(upsample_backward_operator(), {gradients[0]}, attributes)[0]};
      })
      .text(text);
}

OpDef upsample_backward_op() {
  return OpDef("upsample_backward")
      .attributes<UpsampleBackwardAttributes>()
      .input("gradient")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const Shape& x = backward_of(attributes).x;
        make_upsample_grid("upsample_backward", x, of(attributes));
        const Shape expected = result_shape(x, of(attributes));
        require(inputs[0].shape() == expected, "[upsample_backward] gradient is ", inputs[0].describe(), ", expected ",
                expected);
        return std::vector<ArraySpec>{{x, inputs[0].dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        return plane_workspace(inputs[0].dtype(), backward_of(attributes).x);
      })
      .cpu(backward_cpu)
      .text(text);
}

NDArray upsample_nearest(const NDArray& x, const Shape& size) {
  return invoke(upsample_operator(), {x}, UpsampleAttributes{size, false});
}
NDArray upsample_linear(const NDArray& x, const Shape& size) {
  return invoke(upsample_operator(), {x}, UpsampleAttributes{size, true});
}

}  // namespace paceline
