#include "pool/window.h"

#include "shared/channels.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline {

namespace {

using Places = std::array<std::int64_t, 3>;

// Place number `i` of a plane of windows, or of x.
__device__ Places window_of(const Windows& w, std::int64_t i) {
  return {i / (w.axes[1].count * w.axes[2].count), i / w.axes[2].count % w.axes[1].count, i % w.axes[2].count};
}
__device__ Places place_of(const Windows& w, std::int64_t i) {
  return {i / (w.axes[1].size * w.axes[2].size), i / w.axes[2].size % w.axes[1].size, i % w.axes[2].size};
}

// Calls body(position in the plane of x) for the places of a window, in order.
template <class Body>
__device__ void for_each_place(const Windows& w, const Places& window, const Body& body) {
  const auto& [az, ay, ax] = w.axes;
  for (std::int64_t z = az.begin(window[0]); z < az.end(window[0]); ++z)
    for (std::int64_t y = ay.begin(window[1]); y < ay.end(window[1]); ++y)
      for (std::int64_t x = ax.begin(window[2]); x < ax.end(window[2]); ++x) body((z * ay.size + y) * ax.size + x);
}

// Calls body(number of the window, its places) for the windows that hold a place, in order.
template <class Body>
__device__ void for_each_window_with(const Windows& w, const Places& place, const Body& body) {
  const auto& [az, ay, ax] = w.axes;
  for (std::int64_t z = az.first_with(place[0]); z < az.end_with(place[0]); ++z)
    for (std::int64_t y = ay.first_with(place[1]); y < ay.end_with(place[1]); ++y)
      for (std::int64_t x = ax.first_with(place[2]); x < ax.end_with(place[2]); ++x)
        body((z * ay.count + y) * ax.count + x, Places{z, y, x});
}

// How the arrays of places and of windows lie.
struct Orders {
  ChannelOrder places, windows;
};

// One thread for each window.
template <class T>
__global__ void max_windows(const Windows w, const Orders lie, const T* x, T* y, std::int32_t* positions) {
  using A = accumulator_t<T>;
  for (std::int64_t i = detail::first_index(); i < w.planes * lie.windows.places; i += detail::index_step()) {
    const std::int64_t example = lie.windows.example(i), channel = lie.windows.channel(i);
    std::int64_t best = -1;
    A top = 0;
    for_each_place(w, window_of(w, lie.windows.place(i)), [&](std::int64_t place) {
      const A value = static_cast<A>(x[lie.places.at(example, channel, place)]);
      if (value > top || best < 0 || (value != value && top == top)) {
        top = value;
        best = place;
      }
    });
    y[i] = x[lie.places.at(example, channel, best)];
    positions[i] = static_cast<std::int32_t>(best);
  }
}

// One thread for each place of x, which collects what the windows around it send it: always in the same order.
template <class T>
__global__ void max_gradients(const Windows w, const Orders lie, const T* dy, const std::int32_t* positions, T* dx) {
  for (std::int64_t i = detail::first_index(); i < w.planes * lie.places.places; i += detail::index_step()) {
    const std::int64_t example = lie.places.example(i), channel = lie.places.channel(i), place = lie.places.place(i);
    accumulator_t<T> sum = 0;
    for_each_window_with(w, place_of(w, place), [&](std::int64_t window, const Places&) {
      const std::int64_t at = lie.windows.at(example, channel, window);
      if (positions[at] == place) sum += static_cast<accumulator_t<T>>(dy[at]);
    });
    dx[i] = T(sum);
  }
}

template <class T>
__global__ void average_windows(const Windows w, const Orders lie, bool count_padding, const T* x, T* y) {
  using A = accumulator_t<T>;
  for (std::int64_t i = detail::first_index(); i < w.planes * lie.windows.places; i += detail::index_step()) {
    const std::int64_t example = lie.windows.example(i), channel = lie.windows.channel(i);
    const Places window = window_of(w, lie.windows.place(i));
    A sum = 0;
    for_each_place(w, window,
                   [&](std::int64_t place) { sum += static_cast<A>(x[lie.places.at(example, channel, place)]); });
    y[i] = T(sum * average_share<A>(w, count_padding, window));
  }
}

template <class T>
__global__ void average_gradients(const Windows w, const Orders lie, bool count_padding, const T* dy, T* dx) {
  using A = accumulator_t<T>;
  for (std::int64_t i = detail::first_index(); i < w.planes * lie.places.places; i += detail::index_step()) {
    const std::int64_t example = lie.places.example(i), channel = lie.places.channel(i);
    A sum = 0;
    for_each_window_with(w, place_of(w, lie.places.place(i)), [&](std::int64_t number, const Places& window) {
      sum += static_cast<A>(dy[lie.windows.at(example, channel, number)]) * average_share<A>(w, count_padding, window);
    });
    dx[i] = T(sum);
  }
}

const PoolAttributes& of(const void* attributes) { return *static_cast<const PoolAttributes*>(attributes); }

// Calls start(TypeTag, windows, orders, blocks, stream) with the windows over `x`, for one thread for each element of
// `out`.
template <class Start>
void pool(const char* name, const KernelContext& context, const Shape& x, std::span<const Tensor> in, const Tensor& out,
          const void* attributes, const Start& start) {
  const Windows windows = make_windows(name, x, of(attributes));
  if (out.size() == 0) return;
  const bool last = have_channels_last(in);
  const Orders orders{{x[1], windows.input_places(), last}, {x[1], windows.output_places(), last}};
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(out.dtype, name, [&](auto tag) { start(tag, windows, orders, detail::grid_for(out.size()), stream); });
  detail::check_cuda(cudaGetLastError(), "starting to pool");
}

void max_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
              const void* attributes) {
  pool("max_pool", context, in[0].shape, in, out[0], attributes,
       [&]<class T>(TypeTag<T>, const Windows& windows, const Orders& orders, int blocks, cudaStream_t stream) {
         max_windows<<<blocks, detail::kThreads, 0, stream>>>(windows, orders, in[0].as<const T>(), out[0].as<T>(),
                                                              out[1].as<std::int32_t>());
       });
}

void max_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                       const void* attributes) {
  pool("max_pool_backward", context, out[0].shape, in, out[0], attributes,
       [&]<class T>(TypeTag<T>, const Windows& windows, const Orders& orders, int blocks, cudaStream_t stream) {
         max_gradients<<<blocks, detail::kThreads, 0, stream>>>(windows, orders, in[0].as<const T>(),
                                                                in[1].as<const std::int32_t>(), out[0].as<T>());
       });
}

void average_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  pool("average_pool", context, in[0].shape, in, out[0], attributes,
       [&]<class T>(TypeTag<T>, const Windows& windows, const Orders& orders, int blocks, cudaStream_t stream) {
         average_windows<<<blocks, detail::kThreads, 0, stream>>>(windows, orders, of(attributes).count_include_pad,
                                                                  in[0].as<const T>(), out[0].as<T>());
       });
}

void average_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                           const void* attributes) {
  pool("average_pool_backward", context, out[0].shape, in, out[0], attributes,
       [&]<class T>(TypeTag<T>, const Windows& windows, const Orders& orders, int blocks, cudaStream_t stream) {
         average_gradients<<<blocks, detail::kThreads, 0, stream>>>(windows, orders, of(attributes).count_include_pad,
                                                                    in[0].as<const T>(), out[0].as<T>());
       });
}

}  // namespace

OpDef max_pool_on_cuda(OpDef op) { return std::move(op).cuda(max_cuda); }
OpDef max_pool_backward_on_cuda(OpDef op) { return std::move(op).cuda(max_backward_cuda); }
OpDef average_pool_on_cuda(OpDef op) { return std::move(op).cuda(average_cuda); }
OpDef average_pool_backward_on_cuda(OpDef op) { return std::move(op).cuda(average_backward_cuda); }

}  // namespace paceline
