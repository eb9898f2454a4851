#include "softmax_cross_entropy/softmax_cross_entropy.h"

#include "shared/block.cuh"

#include <paceline/detail/device_positions.cuh>

#include <limits>

namespace paceline {

namespace {

// Class numbers in the device's memory. The row of one outside the classes gets NaN.
struct DeviceLabels {
  detail::DevicePositions positions;
  std::int64_t ignored;
  bool ignores;

  DeviceLabels(const KernelContext& context, const Tensor& labels, std::int64_t classes,
               const SoftmaxCrossEntropyAttributes& how)
      : positions(detail::device_labels(
            context, labels, classes, "[softmax_cross_entropy] label {} at position {} is outside [0, {})",
            "[softmax_cross_entropy] label {} at position {} is outside [0, {}): it is no whole number")),
        ignored(how.ignored_label.value_or(0)),
        ignores(how.ignored_label.has_value()) {}

  __device__ std::int64_t classes() const { return positions.limit; }
  __device__ bool is_ignored(std::int64_t row) const {
    return ignores && detail::load_as<double>(positions.dtype, positions.data, row) == static_cast<double>(ignored);
  }
  // Negative for one outside the classes, which is reported. Not of an ignored row.
  __device__ std::int64_t operator[](std::int64_t row) const { return positions[row]; }
};

template <int kWidth, class T, class A>
__global__ void __launch_bounds__(kMostThreadsOfLine)
    forward_rows(const DeviceLabels labels, std::int64_t rows, A smoothing, const T* x, T* p, A* losses) {
  const std::int64_t classes = labels.classes();
  for (std::int64_t row = first_line(); row < rows; row += line_step()) {
    const T* const from = x + row * classes;
    const Line<T, kWidth> in(classes, 1, from);
    const A top = in.fold(
        -std::numeric_limits<A>::infinity(), [](const A* v) { return v[0]; }, Larger());
    const A total = in.sum([=](const A* v) { return std::exp(v[0] - top); });
    const A mean = smoothing == A(0) ? A(0) : in.sum([=](const A* v) { return v[0] - top; }) / static_cast<A>(classes);
    const A scale = A(1) / total;
    A loss = A(0);
    if (threadIdx.x == 0 && !labels.is_ignored(row)) {
      const std::int64_t label = labels[row];
      loss = label >= 0 ? std::log(total) - (detail::load(from[label]) - top) : std::numeric_limits<A>::quiet_NaN();
      if (smoothing != A(0)) loss = (A(1) - smoothing) * loss + smoothing * (std::log(total) - mean);
    }
    if (threadIdx.x == 0) losses[row] = loss;
    in.write(p + row * classes, [=](std::int64_t, const A* v) { return std::exp(v[0] - top) * scale; });
  }
}

// One block, which adds in the same order every time.
template <class T, class A>
__global__ void __launch_bounds__(kMostThreads)
    reduce_losses(const DeviceLabels labels, std::int64_t rows, bool mean, const A* losses, T* loss) {
  const A sum = sum_values<A>(rows, [=](std::int64_t i) { return losses[i]; });
  const std::int64_t counted =
      sum_values<std::int64_t>(rows, [=](std::int64_t i) { return std::int64_t{!labels.is_ignored(i)}; });
  if (threadIdx.x == 0) loss[0] = T(mean ? sum / static_cast<A>(counted) : sum);
}

template <class T, class A>
__global__ void narrow(std::int64_t count, const A* from, T* to) {
  for (std::int64_t i = detail::first_index(); i < count; i += detail::index_step()) to[i] = T(from[i]);
}

__global__ void __launch_bounds__(kMostThreads)
    count_rows(const DeviceLabels labels, std::int64_t rows, std::int64_t* counted) {
  const std::int64_t count =
      sum_values<std::int64_t>(rows, [=](std::int64_t i) { return std::int64_t{!labels.is_ignored(i)}; });
  if (threadIdx.x == 0) *counted = count;
}

// `counted` is null where the gradient is not shared out over the rows.
template <int kWidth, class T, class A>
__global__ void __launch_bounds__(kMostThreadsOfLine)
    backward_rows(const DeviceLabels labels, std::int64_t rows, bool by_row, A smoothing, const std::int64_t* counted,
                  const T* gradients, const T* p, T* dx) {
  const std::int64_t classes = labels.classes();
  const A everywhere = smoothing / static_cast<A>(classes);
  const A share = counted ? A(1) / static_cast<A>(*counted) : A(1);
  for (std::int64_t row = first_line(); row < rows; row += line_step()) {
    const Line<T, kWidth> in(classes, 1, p + row * classes);
    const bool ignored = labels.is_ignored(row);
    const std::int64_t label = ignored ? 0 : labels[row];
    const A gradient = detail::load(gradients[by_row ? row : 0]) * share;
    in.write(dx + row * classes, [=](std::int64_t i, const A* v) {
      if (ignored) return A(0);
      A slope = v[0] - everywhere;
      if (i == label) slope -= A(1) - smoothing;
      if (label < 0) slope = std::numeric_limits<A>::quiet_NaN();
      return slope * gradient;
    });
  }
}

const SoftmaxCrossEntropyAttributes& of(const void* attributes) {
  return *static_cast<const SoftmaxCrossEntropyAttributes*>(attributes);
}

// Outputs: loss, probabilities. The workspace takes the losses of the rows.
void forward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const SoftmaxCrossEntropyAttributes& how = of(attributes);
  const std::int64_t rows = in[0].shape[0], classes = in[0].shape[1];
  const DeviceLabels labels(context, in[1], classes, how);
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "softmax_cross_entropy", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    A* const losses = static_cast<A*>(context.workspace);
    const LineGrid grid(rows, classes * static_cast<std::int64_t>(sizeof(T)));
    if (rows > 0)
      with_vectors<T>(classes, 1, {in[0].data, out[1].data}, [&]<int kWidth>(Width<kWidth>) {
        forward_rows<kWidth><<<grid.blocks, grid.threads, 0, stream>>>(
            labels, rows, static_cast<A>(how.label_smoothing), in[0].as<const T>(), out[1].as<T>(), losses);
      });
    if (how.reduction == Reduction::kNone)
      narrow<<<detail::grid_for(rows), detail::kThreads, 0, stream>>>(rows, losses, out[0].as<T>());
    else
      reduce_losses<<<1, kMostThreads, 0, stream>>>(labels, rows, how.reduction == Reduction::kMean, losses,
                                                    out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting softmax_cross_entropy");
}

// Inputs: gradient, probabilities, labels. The workspace takes the number of rows that count.
void backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const SoftmaxCrossEntropyAttributes& how = of(attributes);
  const std::int64_t rows = in[1].shape[0], classes = in[1].shape[1];
  if (rows == 0) return;
  const DeviceLabels labels(context, in[2], classes, how);
  std::int64_t* const counted =
      how.reduction == Reduction::kMean ? static_cast<std::int64_t*>(context.workspace) : nullptr;
  const cudaStream_t stream = detail::stream_of(context);
  if (counted) count_rows<<<1, kMostThreads, 0, stream>>>(labels, rows, counted);
  visit_floating(in[0].dtype, "softmax_cross_entropy_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const LineGrid grid(rows, classes * static_cast<std::int64_t>(sizeof(T)));
    with_vectors<T>(classes, 1, {in[1].data, out[0].data}, [&]<int kWidth>(Width<kWidth>) {
      backward_rows<kWidth><<<grid.blocks, grid.threads, 0, stream>>>(
          labels, rows, how.reduction == Reduction::kNone, static_cast<A>(how.label_smoothing), counted,
          in[0].as<const T>(), in[1].as<const T>(), out[0].as<T>());
    });
  });
  detail::check_cuda(cudaGetLastError(), "starting softmax_cross_entropy_backward");
}

}  // namespace

OpDef softmax_cross_entropy_on_cuda(OpDef op) { return std::move(op).cuda(forward_cuda); }

OpDef softmax_cross_entropy_backward_on_cuda(OpDef op) {
  return std::move(op).cuda(backward_cuda).workspace([](const std::vector<NDArray>&, const void*) {
    return sizeof(std::int64_t);
  });
}

}  // namespace paceline
