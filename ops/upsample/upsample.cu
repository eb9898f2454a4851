#include "upsample/grid.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline {

namespace {

// One thread for each place of the result.
template <class T>
__global__ void resample(const UpsampleGrid grid, std::int64_t total, const T* x, T* y) {
  using A = accumulator_t<T>;
  const auto& [az, ay, ax] = grid.axes;
  const std::int64_t places = grid.output_places();
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step()) {
    const T* const plane = x + i / places * grid.input_places();
    const std::int64_t at = i % places;
    const UpsampleSource<A> from_z = az.source<A>(at / (ay.to * ax.to)), from_y = ay.source<A>(at / ax.to % ay.to),
                            from_x = ax.source<A>(at % ax.to);
    A sum = 0;
    for (int a = 0; a < from_z.count; ++a)
      for (int b = 0; b < from_y.count; ++b)
        for (int c = 0; c < from_x.count; ++c)
          sum += from_z.weight[a] * from_y.weight[b] * from_x.weight[c] *
                 static_cast<A>(plane[(from_z.place[a] * ay.from + from_y.place[b]) * ax.from + from_x.place[c]]);
    y[i] = T(sum);
  }
}

// One thread for each place of x, which collects its shares of the gradient in order.
template <class T>
__global__ void collect(const UpsampleGrid grid, std::int64_t total, const T* dy, T* dx) {
  using A = accumulator_t<T>;
  const auto& [az, ay, ax] = grid.axes;
  const std::int64_t places = grid.input_places();
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step()) {
    const T* const plane = dy + i / places * grid.output_places();
    const std::int64_t at = i % places;
    const std::int64_t place_z = at / (ay.from * ax.from), place_y = at / ax.from % ay.from, place_x = at % ax.from;
    A sum = 0;
    for (std::int64_t z = az.first_from(place_z); z < az.end_from(place_z); ++z) {
      const A weight_z = az.weight<A>(z, place_z);
      for (std::int64_t y = ay.first_from(place_y); y < ay.end_from(place_y); ++y) {
        const A weight_y = weight_z * ay.weight<A>(y, place_y);
        if (weight_y == A(0)) continue;
        for (std::int64_t x = ax.first_from(place_x); x < ax.end_from(place_x); ++x)
          sum += weight_y * ax.weight<A>(x, place_x) * static_cast<A>(plane[(z * ay.to + y) * ax.to + x]);
      }
    }
    dx[i] = T(sum);
  }
}

void upsample_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const UpsampleGrid grid =
      make_upsample_grid("upsample", in[0].shape, *static_cast<const UpsampleAttributes*>(attributes));
  if (out[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "upsample", [&](auto tag) {
    using T = typename decltype(tag)::type;
    resample<<<detail::grid_for(out[0].size()), detail::kThreads, 0, stream>>>(grid, out[0].size(), in[0].as<const T>(),
                                                                               out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting upsample");
}

void backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const UpsampleGrid grid = make_upsample_grid("upsample_backward", out[0].shape,
                                               *static_cast<const UpsampleBackwardAttributes*>(attributes));
  if (out[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "upsample_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    collect<<<detail::grid_for(out[0].size()), detail::kThreads, 0, stream>>>(grid, out[0].size(), in[0].as<const T>(),
                                                                              out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting upsample_backward");
}

}  // namespace

OpDef upsample_on_cuda(OpDef op) { return std::move(op).cuda(upsample_cuda); }
OpDef upsample_backward_on_cuda(OpDef op) { return std::move(op).cuda(backward_cuda); }

}  // namespace paceline
