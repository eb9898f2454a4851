// Merge sort: each pass merges runs in pairs. Every element finds by bisection how many elements of the other run come
// before it. Equal elements keep their order, and no two threads write one place.
#include "shared/rows.h"
#include "sort/order.h"

#include <paceline/detail/elementwise.cuh>

#include <utility>

namespace paceline {

namespace {

__global__ void number(std::int64_t total, std::int64_t size, std::int64_t* places) {
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step()) places[i] = i % size;
}

// `from` and `to`: for each line, which element of x is in each place.
template <class T>
__global__ void merge(const AxisView view, bool descending, std::int64_t width, const T* x, const std::int64_t* from,
                      std::int64_t* to) {
  using A = accumulator_t<T>;
  const std::int64_t total = view.lines() * view.size;
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step()) {
    const std::int64_t line = i / view.size, at = i % view.size;
    const T* const values = x + view.first(line);
    const std::int64_t* const places = from + line * view.size;
    const auto first = [=](std::int64_t a, std::int64_t b) {
      return is_first(descending, static_cast<A>(values[places[a] * view.inner]), places[a],
                      static_cast<A>(values[places[b] * view.inner]), places[b]);
    };
    to[line * view.size + merged_place(at, width, view.size, first)] = places[at];
  }
}

// Writes the first result.size elements of each sorted line, and their positions in the line of x.
template <class T>
__global__ void collect(const AxisView view, const AxisView result, const T* x, const std::int64_t* places, T* values,
                        std::int64_t* positions) {
  const std::int64_t total = result.lines() * result.size;
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step()) {
    const std::int64_t line = i / result.size, at = i % result.size;
    const std::int64_t place = places[line * view.size + at], to = result.first(line) + at * result.inner;
    values[to] = x[view.first(line) + place * view.inner];
    positions[to] = place;
  }
}

// The workspace takes two lists of places.
template <class Attributes>
void sort_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
               const void* attributes) {
  const Order order = order_of(*static_cast<const Attributes*>(attributes));
  const int axis = normalize_axis(order.axis, in[0].shape.ndim(), "sort");
  const AxisView view = around_axis(in[0].shape, axis), result = around_axis(out[0].shape, axis);
  const std::int64_t total = in[0].size();
  if (out[0].size() == 0) return;
  std::int64_t* places = static_cast<std::int64_t*>(context.workspace);
  std::int64_t* other = places + total;
  const int blocks = detail::grid_for(total);
  const cudaStream_t stream = detail::stream_of(context);
  number<<<blocks, detail::kThreads, 0, stream>>>(total, view.size, places);
  visit_dtype(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::int64_t width = 1; width < view.size; width *= 2) {
      merge<<<blocks, detail::kThreads, 0, stream>>>(view, order.descending, width, in[0].as<const T>(), places, other);
      std::swap(places, other);
    }
    collect<<<detail::grid_for(out[0].size()), detail::kThreads, 0, stream>>>(
        view, result, in[0].as<const T>(), places, out[0].as<T>(), out[1].as<std::int64_t>());
  });
  detail::check_cuda(cudaGetLastError(), "starting to sort");
}

template <class Attributes>
OpDef with_cuda(OpDef op) {
  return std::move(op).cuda(sort_cuda<Attributes>).workspace([](const std::vector<NDArray>& inputs, const void* how) {
    const NDArray& x = inputs[0];
    const bool on_cuda = x.device().kind == DeviceKind::kCuda;
    const Order order = order_of(*static_cast<const Attributes*>(how));
    return static_cast<std::size_t>(on_cuda ? 2 * x.size() : kept_of(order, x.size(order.axis))) * sizeof(std::int64_t);
  });
}

}  // namespace

OpDef sort_on_cuda(OpDef op) { return with_cuda<SortAttributes>(std::move(op)); }
OpDef top_k_on_cuda(OpDef op) { return with_cuda<TopKAttributes>(std::move(op)); }

}  // namespace paceline
