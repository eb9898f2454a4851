#include "pool/window.h"

#include "shared/channels.h"
#include "shared/line.cuh"

namespace paceline {

namespace {

using Places = std::array<std::int64_t, 3>;

// What the kernels run over: planes of places, a place being `lanes` neighbours in memory. Those are the channels where
// they are the last; else each channel has planes of its own, of one lane.
struct Planes {
  std::int64_t count, lanes;
};

// How a row is shared out: blocks of (elements of a row, rows) threads.
struct RowGrid {
  dim3 blocks, threads;

  RowGrid(std::int64_t rows, std::int64_t size) {
    constexpr std::int64_t kMostBlocks = 65535;
    while (threads.x < detail::kThreads && threads.x < size) threads.x *= 2;
    threads.y = detail::kThreads / threads.x;
    blocks.x = static_cast<unsigned>(std::clamp<std::int64_t>((rows + threads.y - 1) / threads.y, 1, kMostBlocks));
  }
};

// Calls body(number of the plane, {z, y, x}, lane) for this thread's vectors of kWidth lanes, in planes of these sizes.
template <int kWidth, class Body>
__device__ void for_each_vector(const Planes& planes, const Places& sizes, const Body& body) {
  const std::int64_t vectors = planes.lanes / kWidth, rows = planes.count * sizes[0] * sizes[1];
  for (std::int64_t row = first_line(); row < rows; row += line_step()) {
    const std::int64_t plane = row / (sizes[0] * sizes[1]), z = row / sizes[1] % sizes[0], y = row % sizes[1];
    for (std::int64_t i = threadIdx.x; i < sizes[2] * vectors; i += blockDim.x) {
      const std::int64_t x = i / vectors;
      body(plane, Places{z, y, x}, (i - x * vectors) * kWidth);
    }
  }
}

__device__ Places places_of(const Windows& w) { return {w.axes[0].size, w.axes[1].size, w.axes[2].size}; }
__device__ Places windows_of(const Windows& w) { return {w.axes[0].count, w.axes[1].count, w.axes[2].count}; }

// The number of place or window `at` in its plane.
__device__ std::int64_t number_of(const Places& at, const Places& sizes) {
  return (at[0] * sizes[1] + at[1]) * sizes[2] + at[2];
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
  const std::int64_t left = ax.first_with(place[2]), right = ax.end_with(place[2]);
  for (std::int64_t z = az.first_with(place[0]); z < az.end_with(place[0]); ++z)
    for (std::int64_t y = ay.first_with(place[1]); y < ay.end_with(place[1]); ++y)
      for (std::int64_t x = left; x < right; ++x) body((z * ay.count + y) * ax.count + x, Places{z, y, x});
}

// One thread for each vector of windows.
template <int kWidth, class T>
__global__ void max_windows(const Windows w, const Planes planes, const T* x, T* y, std::int32_t* positions) {
  using A = accumulator_t<T>;
  for_each_vector<kWidth>(planes, windows_of(w), [&](std::int64_t plane, const Places& window, std::int64_t lane) {
    const T* const from = x + plane * w.input_places() * planes.lanes + lane;
    detail::Vector<T, kWidth> best;
    detail::Vector<std::int32_t, kWidth> at;
    bool first = true;
    for_each_place(w, window, [&](std::int64_t place) {
      const auto values = detail::read_vector<kWidth>(from + place * planes.lanes);
      for (int k = 0; k < kWidth; ++k) {
        const A value = detail::load(values.at[k]), top = first ? A(0) : detail::load(best.at[k]);
        if (!first && !(value > top) && (value == value || top != top)) continue;
        best.at[k] = values.at[k];
        at.at[k] = static_cast<std::int32_t>(place);
      }
      first = false;
    });
    const std::int64_t to = (plane * w.output_places() + number_of(window, windows_of(w))) * planes.lanes + lane;
    detail::write_vector(y + to, best);
    detail::write_vector(positions + to, at);
  });
}

// One thread for each vector of places of x, which collects what the windows around it send it: always in the same
// order.
template <int kWidth, class T>
__global__ void max_gradients(const Windows w, const Planes planes, const T* dy, const std::int32_t* positions, T* dx) {
  for_each_vector<kWidth>(planes, places_of(w), [&](std::int64_t plane, const Places& place, std::int64_t lane) {
    const std::int64_t first = plane * w.output_places() * planes.lanes + lane, number = number_of(place, places_of(w));
    accumulator_t<T> sums[kWidth]{};
    for_each_window_with(w, place, [&](std::int64_t window, const Places&) {
      const auto at = detail::read_vector<kWidth>(positions + first + window * planes.lanes);
      const auto gradients = detail::read_vector<kWidth>(dy + first + window * planes.lanes);
      for (int k = 0; k < kWidth; ++k)
        if (at.at[k] == static_cast<std::int32_t>(number)) sums[k] += detail::load(gradients.at[k]);
    });
    detail::Vector<T, kWidth> result;
    for (int k = 0; k < kWidth; ++k) result.at[k] = detail::stored<T>(sums[k]);
    detail::write_vector(dx + (plane * w.input_places() + number) * planes.lanes + lane, result);
  });
}

template <int kWidth, class T>
__global__ void average_windows(const Windows w, const Planes planes, bool count_padding, const T* x, T* y) {
  using A = accumulator_t<T>;
  for_each_vector<kWidth>(planes, windows_of(w), [&](std::int64_t plane, const Places& window, std::int64_t lane) {
    const T* const from = x + plane * w.input_places() * planes.lanes + lane;
    A sums[kWidth]{};
    for_each_place(w, window, [&](std::int64_t place) {
      const auto values = detail::read_vector<kWidth>(from + place * planes.lanes);
      for (int k = 0; k < kWidth; ++k) sums[k] += detail::load(values.at[k]);
    });
    const A share = average_share<A>(w, count_padding, window);
    detail::Vector<T, kWidth> result;
    for (int k = 0; k < kWidth; ++k) result.at[k] = detail::stored<T>(sums[k] * share);
    const std::int64_t number = number_of(window, windows_of(w));
    detail::write_vector(y + (plane * w.output_places() + number) * planes.lanes + lane, result);
  });
}

template <int kWidth, class T>
__global__ void average_gradients(const Windows w, const Planes planes, bool count_padding, const T* dy, T* dx) {
  using A = accumulator_t<T>;
  for_each_vector<kWidth>(planes, places_of(w), [&](std::int64_t plane, const Places& place, std::int64_t lane) {
    const T* const from = dy + plane * w.output_places() * planes.lanes + lane;
    A sums[kWidth]{};
    for_each_window_with(w, place, [&](std::int64_t number, const Places& window) {
      const A share = average_share<A>(w, count_padding, window);
      const auto gradients = detail::read_vector<kWidth>(from + number * planes.lanes);
      for (int k = 0; k < kWidth; ++k) sums[k] += detail::load(gradients.at[k]) * share;
    });
    detail::Vector<T, kWidth> result;
    for (int k = 0; k < kWidth; ++k) result.at[k] = detail::stored<T>(sums[k]);
    const std::int64_t number = number_of(place, places_of(w));
    detail::write_vector(dx + (plane * w.input_places() + number) * planes.lanes + lane, result);
  });
}

const PoolAttributes& of(const void* attributes) { return *static_cast<const PoolAttributes*>(attributes); }

// Calls start(TypeTag, Width, windows, planes, grid, stream) with the windows over `x`, for one thread for each vector
// of out[0].
template <class Start>
void pool(const char* name, const KernelContext& context, const Shape& x, std::span<const Tensor> in,
          std::span<const Tensor> out, const void* attributes, const Start& start) {
  const Windows windows = make_windows(name, x, of(attributes));
  const Tensor& to = out[0];
  if (to.size() == 0) return;
  const Planes planes = have_channels_last(in) ? Planes{x[0], x[1]} : Planes{x[0] * x[1], 1};
  const std::int64_t row = to.shape[to.shape.ndim() - 1], rows = to.size() / (row * planes.lanes);
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(to.dtype, name, [&]<class T>(TypeTag<T> tag) {
    with_vectors<T>(planes.lanes, 1, {in[0].data, in.back().data, to.data, out.back().data},
                    [&]<int kWidth>(Width<kWidth> width) {
                      start(tag, width, windows, planes, RowGrid(rows, row * planes.lanes / kWidth), stream);
                    });
  });
  detail::check_cuda(cudaGetLastError(), "starting to pool");
}

void max_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
              const void* attributes) {
  pool("max_pool", context, in[0].shape, in, out, attributes,
       [&]<class T, int kWidth>(TypeTag<T>, Width<kWidth>, const Windows& windows, const Planes& planes,
                                const RowGrid& grid, cudaStream_t stream) {
         max_windows<kWidth><<<grid.blocks, grid.threads, 0, stream>>>(windows, planes, in[0].as<const T>(),
                                                                       out[0].as<T>(), out[1].as<std::int32_t>());
       });
}

void max_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                       const void* attributes) {
  pool("max_pool_backward", context, out[0].shape, in, out, attributes,
       [&]<class T, int kWidth>(TypeTag<T>, Width<kWidth>, const Windows& windows, const Planes& planes,
                                const RowGrid& grid, cudaStream_t stream) {
         max_gradients<kWidth><<<grid.blocks, grid.threads, 0, stream>>>(
             windows, planes, in[0].as<const T>(), in[1].as<const std::int32_t>(), out[0].as<T>());
       });
}

void average_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  pool("average_pool", context, in[0].shape, in, out, attributes,
       [&]<class T, int kWidth>(TypeTag<T>, Width<kWidth>, const Windows& windows, const Planes& planes,
                                const RowGrid& grid, cudaStream_t stream) {
         average_windows<kWidth><<<grid.blocks, grid.threads, 0, stream>>>(
             windows, planes, of(attributes).count_include_pad, in[0].as<const T>(), out[0].as<T>());
       });
}

void average_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                           const void* attributes) {
  pool("average_pool_backward", context, out[0].shape, in, out, attributes,
       [&]<class T, int kWidth>(TypeTag<T>, Width<kWidth>, const Windows& windows, const Planes& planes,
                                const RowGrid& grid, cudaStream_t stream) {
         average_gradients<kWidth><<<grid.blocks, grid.threads, 0, stream>>>(
             windows, planes, of(attributes).count_include_pad, in[0].as<const T>(), out[0].as<T>());
       });
}

}  // namespace

OpDef max_pool_on_cuda(OpDef op) { return std::move(op).cuda(max_cuda); }
OpDef max_pool_backward_on_cuda(OpDef op) { return std::move(op).cuda(max_backward_cuda); }
OpDef average_pool_on_cuda(OpDef op) { return std::move(op).cuda(average_cuda); }
OpDef average_pool_backward_on_cuda(OpDef op) { return std::move(op).cuda(average_backward_cuda); }

}  // namespace paceline
