#include "index/index.h"
#include "index/pairs.h"

#include "shared/rows.h"
#include "shared/take_rows.cuh"

#include <paceline/detail/wrapping.h>

namespace paceline {

namespace {

int axis_of(const void* attributes) { return static_cast<const IndexAttributes*>(attributes)->axis; }

// gather takes 0 for a position outside the array, scatter_add and one_hot leave it out.
template <class T>
__global__ void gather_elements(const IndexPairs pairs, const detail::DevicePositions positions, const T* x, T* y) {
  const std::int64_t total = pairs.lines() * pairs.sizes[pairs.axis];
  const std::int64_t lines = pairs.lines(), step = pairs.step();
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step()) {
    std::int64_t place, element;
    pairs.begin(i % lines, place, element);
    place += i / lines * step;
    const std::int64_t position = positions[place];
    y[place] = position >= 0 ? x[element + position * pairs.strides[pairs.axis]] : detail::convert<T>(0);
  }
}

// A thread for each line of positions: no two of them touch one element, and sums are made in order.
template <class T, class A>
__global__ void add_lines(const IndexPairs pairs, const detail::DevicePositions positions, const T* values, A* sums) {
  const std::int64_t step = pairs.step();
  for (std::int64_t line = detail::first_index(); line < pairs.lines(); line += detail::index_step()) {
    std::int64_t place, element;
    pairs.begin(line, place, element);
    for (std::int64_t i = 0; i < pairs.sizes[pairs.axis]; ++i, place += step) {
      const std::int64_t position = positions[place];
      if (position < 0) continue;
      A& sum = sums[element + position * pairs.strides[pairs.axis]];
      sum = detail::wrapping_sum(sum, static_cast<A>(values[place]));
    }
  }
}

template <class To, class From>
__global__ void convert_all(std::int64_t count, const From* from, To* to) {
  for (std::int64_t i = detail::first_index(); i < count; i += detail::index_step())
    to[i] = detail::convert<To>(from[i]);
}

template <class T>
__global__ void one_hot_elements(std::int64_t total, const detail::DevicePositions positions, T* y) {
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step())
    y[i] = detail::convert<T>(positions[i / positions.limit] == i % positions.limit);
}

void gather_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const int axis = normalize_axis(axis_of(attributes), in[0].shape.ndim(), "gather");
  if (out[0].size() == 0) return;
  const IndexPairs pairs(in[1].shape, in[0].shape, axis);
  const detail::DevicePositions positions(context, in[1], in[0].shape[axis],
                                          "[gather] position {} (number {}) is outside [0, {})");
  const cudaStream_t stream = detail::stream_of(context);
  visit_dtype(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    gather_elements<<<detail::grid_for(out[0].size()), detail::kThreads, 0, stream>>>(
        pairs, positions, in[0].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting gather");
}

// The workspace takes the sums of small types.
void scatter_add_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                      const void* attributes) {
  const int axis = normalize_axis(axis_of(attributes), in[0].shape.ndim(), "scatter_add");
  const std::int64_t total = in[0].size();
  if (total == 0) return;
  const IndexPairs pairs(in[1].shape, in[0].shape, axis);
  const detail::DevicePositions positions(context, in[1], in[0].shape[axis],
                                          "[scatter_add] position {} (number {}) is outside [0, {})");
  const cudaStream_t stream = detail::stream_of(context);
  visit_dtype(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) {
      using A = accumulator_t<T>;
      A* const sums = std::is_same_v<A, T> ? static_cast<A*>(out[0].data) : static_cast<A*>(context.workspace);
      convert_all<<<detail::grid_for(total), detail::kThreads, 0, stream>>>(total, in[0].as<const T>(), sums);
      if (in[1].size() > 0)
        add_lines<<<detail::grid_for(pairs.lines()), detail::kThreads, 0, stream>>>(pairs, positions,
                                                                                    in[2].as<const T>(), sums);
      if constexpr (!std::is_same_v<A, T>)
        convert_all<<<detail::grid_for(total), detail::kThreads, 0, stream>>>(total, sums, out[0].as<T>());
    }
  });
  detail::check_cuda(cudaGetLastError(), "starting scatter_add");
}

void take_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
               const void* attributes) {
  const Tensor& x = in[0];
  const AxisView view = around_axis(
      x.shape, normalize_axis(static_cast<const TakeAttributes*>(attributes)->axis, x.shape.ndim(), "take"));
  const auto positions =
      detail::positions_from_back(context, in[1], view.size, "[take] position {} (number {}) is outside [-{}, {})");
  take_rows(context, view.outer, view.inner * static_cast<std::int64_t>(size_of(x.dtype)), in[1].size(), positions,
            x.data, out[0].data);
}

void one_hot_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const std::int64_t classes = static_cast<const OneHotAttributes*>(attributes)->classes;
  const std::int64_t total = out[0].size();
  if (total == 0) return;
  const detail::DevicePositions positions(context, in[0], classes,
                                          "[one_hot] position {} (number {}) is outside [0, {})");
  const cudaStream_t stream = detail::stream_of(context);
  visit_dtype(out[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    one_hot_elements<<<detail::grid_for(total), detail::kThreads, 0, stream>>>(total, positions, out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting one_hot");
}

// One axis after the other adds its share to the flat positions.
__global__ void add_flat_positions(std::int64_t count, const detail::DevicePositions positions, std::int64_t stride,
                                   bool first, std::int64_t* flat) {
  for (std::int64_t i = detail::first_index(); i < count; i += detail::index_step()) {
    const std::int64_t position = positions[i];
    const std::int64_t before = first ? 0 : flat[i];
    flat[i] = before + (position < 0 ? 0 : position * stride);
  }
}

void flat_positions_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                         const void* attributes) {
  const auto& sizes = static_cast<const FlatPositionsAttributes*>(attributes)->sizes;
  const std::int64_t count = out[0].size();
  if (count == 0) return;
  std::int64_t stride = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    Tensor row = in[0];
    row.data =
        in[0].as<char>() + static_cast<std::int64_t>(axis) * count * static_cast<std::int64_t>(size_of(row.dtype));
    const auto positions = detail::positions_from_back(context, row, sizes[axis],
                                                       "[flat_positions] position {} (number {}) is outside [-{}, {})");
    add_flat_positions<<<detail::grid_for(count), detail::kThreads, 0, detail::stream_of(context)>>>(
        count, positions, stride, axis + 1 == sizes.size(), out[0].as<std::int64_t>());
    stride *= sizes[axis];
  }
  detail::check_cuda(cudaGetLastError(), "starting gather_nd");
}

}  // namespace

OpDef flat_positions_on_cuda(OpDef op) { return std::move(op).cuda(flat_positions_cuda); }
OpDef gather_on_cuda(OpDef op) { return std::move(op).cuda(gather_cuda); }
OpDef scatter_add_on_cuda(OpDef op) { return std::move(op).cuda(scatter_add_cuda); }
OpDef take_on_cuda(OpDef op) { return std::move(op).cuda(take_cuda); }
OpDef one_hot_on_cuda(OpDef op) { return std::move(op).cuda(one_hot_cuda); }

}  // namespace paceline
