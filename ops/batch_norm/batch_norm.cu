#include "batch_norm/batch_norm.h"

#include "batch_norm/channels_last.cuh"
#include "shared/block.cuh"
#include "shared/channels.h"

namespace paceline {

namespace {

// The elements of one channel: `plane` neighbours of each example. Few channels of many elements are shared out among
// several blocks each: every parts-th run of elements for one, their sums meeting in the workspace.
struct Channels {
  std::int64_t examples, channels, plane = 1, parts = 1;

  explicit Channels(const Shape& x) : examples(x[0]), channels(x[1]) {
    constexpr std::int64_t kBlocks = 512;
    constexpr std::int64_t kElements = 2 * kMostThreads;  // of a block, at least
    for (int i = 2; i < x.ndim(); ++i) plane *= x[i];
    if (channels > 0) parts = std::max<std::int64_t>(1, std::min(kBlocks / channels, count() / kElements));
  }
  HOST_DEVICE std::int64_t count() const { return examples * plane; }
  // Element i of a channel.
  HOST_DEVICE std::int64_t at(std::int64_t channel, std::int64_t i) const {
    return (i / plane * channels + channel) * plane + i % plane;
  }
  std::int64_t blocks() const { return channels * parts; }
  // Of two sums for each block.
  std::size_t workspace_bytes() const {
    return parts > 1 ? 2 * static_cast<std::size_t>(blocks()) * sizeof(double) : 0;
  }
};

// Calls body(i) for the elements of a part that are this thread's.
template <class Body>
__device__ void for_each(const Channels& layout, std::int64_t part, const Body& body) {
  for (std::int64_t i = part * blockDim.x + threadIdx.x; i < layout.count(); i += layout.parts * blockDim.x) body(i);
}

// Threads sum in the accumulator's type, their sums are added in float64.
template <class A, class Value>
__device__ double part_sum(const Channels& layout, std::int64_t part, const Value& value) {
  A mine = 0;
  for_each(layout, part, [&](std::int64_t i) { mine += value(i); });
  return fold_block(static_cast<double>(mine), Plus());
}

// `of_parts`: what part_sum() gave for each part of each channel, where there are several.
template <class A, class Value>
__device__ double channel_sum(const Channels& layout, std::int64_t channel, const double* of_parts,
                              const Value& value) {
  if (layout.parts == 1) return part_sum<A>(layout, 0, value);
  return sum_values<double>(layout.parts, [=](std::int64_t i) { return of_parts[channel * layout.parts + i]; });
}

template <class T, class A>
__global__ void sum_parts(const Channels layout, const T* x, double* sums) {
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts;
    const double sum =
        part_sum<A>(layout, block % layout.parts, [=](std::int64_t i) { return static_cast<A>(x[layout.at(c, i)]); });
    if (threadIdx.x == 0) sums[block] = sum;
  }
}

template <class T, class A>
__global__ void sum_squares_of_parts(const Channels layout, const T* x, const double* sums, double* squares) {
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts;
    const auto value = [=](std::int64_t i) { return static_cast<A>(x[layout.at(c, i)]); };
    const A center = static_cast<A>(channel_sum<A>(layout, c, sums, value) / static_cast<double>(layout.count()));
    const double sum = part_sum<A>(layout, block % layout.parts,
                                   [=](std::int64_t i) { return (value(i) - center) * (value(i) - center); });
    if (threadIdx.x == 0) squares[block] = sum;
  }
}

template <class T, class A>
__global__ void normalize_channels(const Channels layout, bool training, double momentum, double epsilon,
                                   const double* sums, const double* squares, const T* x, const A* gamma, const A* beta,
                                   T* y, A* used_mean, A* inverse_deviation, A* running_mean, A* running_variance) {
  const auto count = static_cast<double>(layout.count());
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts, part = block % layout.parts;
    const bool notes = threadIdx.x == 0 && part == 0;
    double mean = 0, variance = 0;
    if (training && count > 0) {
      const auto value = [=](std::int64_t i) { return static_cast<A>(x[layout.at(c, i)]); };
      mean = channel_sum<A>(layout, c, sums, value) / count;
      const A center = static_cast<A>(mean);
      variance = channel_sum<A>(layout, c, squares,
                                [=](std::int64_t i) { return (value(i) - center) * (value(i) - center); }) /
                 count;
      if (notes) {
        running_mean[c] = static_cast<A>(momentum * static_cast<double>(running_mean[c]) + (1 - momentum) * mean);
        running_variance[c] =
            static_cast<A>(momentum * static_cast<double>(running_variance[c]) + (1 - momentum) * variance);
      }
    } else {
      mean = static_cast<double>(running_mean[c]);
      variance = static_cast<double>(running_variance[c]);
    }
    const double inverse = 1 / std::sqrt(variance + epsilon);
    if (notes) {
      used_mean[c] = static_cast<A>(mean);
      inverse_deviation[c] = static_cast<A>(inverse);
    }
    const A center = static_cast<A>(mean);
    const A slope = static_cast<A>(inverse) * gamma[c];
    const A shift = beta[c];
    for_each(layout, part, [=](std::int64_t i) {
      const std::int64_t at = layout.at(c, i);
      y[at] = T((static_cast<A>(x[at]) - center) * slope + shift);
    });
  }
}

// Of the gradient, and of the gradient times the distance from the mean.
template <class T, class A>
__global__ void sum_gradients_of_parts(const Channels layout, const T* dy, const T* x, const A* mean, double* sums,
                                       double* products) {
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts, part = block % layout.parts;
    const A center = mean[c];
    const auto gradient = [=](std::int64_t i) { return static_cast<A>(dy[layout.at(c, i)]); };
    const double sum = part_sum<A>(layout, part, gradient);
    const double product = part_sum<A>(
        layout, part, [=](std::int64_t i) { return gradient(i) * (static_cast<A>(x[layout.at(c, i)]) - center); });
    if (threadIdx.x > 0) continue;
    sums[block] = sum;
    products[block] = product;
  }
}

template <class T, class A>
__global__ void backward_channels(const Channels layout, bool training, const double* sums, const double* products,
                                  const T* dy, const T* x, const A* gamma, const A* mean, const A* inverse_deviation,
                                  T* dx, A* gamma_gradient, A* beta_gradient) {
  const auto count = static_cast<double>(layout.count());
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts, part = block % layout.parts;
    const A center = mean[c];
    const A inverse = inverse_deviation[c];
    const auto gradient = [=](std::int64_t i) { return static_cast<A>(dy[layout.at(c, i)]); };
    const double sum = channel_sum<A>(layout, c, sums, gradient);
    const double product =
        channel_sum<A>(layout, c, products,
                       [=](std::int64_t i) { return gradient(i) * (static_cast<A>(x[layout.at(c, i)]) - center); }) *
        static_cast<double>(inverse);
    if (threadIdx.x == 0 && part == 0) {
      gamma_gradient[c] = static_cast<A>(product);
      beta_gradient[c] = static_cast<A>(sum);
    }
    const A slope = gamma[c] * inverse;
    const A mean_gradient = static_cast<A>(sum / count);
    const A mean_product = static_cast<A>(product / count) * inverse;
    for_each(layout, part, [=](std::int64_t i) {
      const std::int64_t at = layout.at(c, i);
      const A g = static_cast<A>(dy[at]);
      dx[at] = T(training ? slope * (g - mean_gradient - (static_cast<A>(x[at]) - center) * mean_product) : slope * g);
    });
  }
}

const BatchNormAttributes& of(const void* attributes) { return *static_cast<const BatchNormAttributes*>(attributes); }

// Inputs: x, gamma, beta, running mean and variance. Outputs: y, used mean, 1 / deviation, running mean and variance.
void forward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const auto [momentum, epsilon, training] = of(attributes);
  const Channels layout(in[0].shape);
  if (layout.channels == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "batch_norm", [&, momentum = momentum, epsilon = epsilon, training = training](auto tag) {
    using T = typename decltype(tag)::type;
    using A = accumulator_t<T>;
    const unsigned blocks = blocks_for(layout.blocks());
    const int threads = threads_for(layout.count() / layout.parts, kMostThreads);
    double* const sums = static_cast<double*>(context.workspace);
    if (have_channels_last(in)) {
      const ChannelStatistics<A> statistics{out[1].as<A>(), out[2].as<A>(), out[3].as<A>(), out[4].as<A>()};
      return normalize_channels_last<T>(layout.count(), layout.channels, training, momentum, epsilon,
                                        in[0].as<const T>(), in[1].as<const A>(), in[2].as<const A>(), out[0].as<T>(),
                                        statistics, sums, stream);
    }
    double* const squares = sums + layout.blocks();
    if (training && layout.parts > 1) {
      sum_parts<T, A><<<blocks, threads, 0, stream>>>(layout, in[0].as<const T>(), sums);
      sum_squares_of_parts<T, A><<<blocks, threads, 0, stream>>>(layout, in[0].as<const T>(), sums, squares);
    }
    normalize_channels<<<blocks, threads, 0, stream>>>(
        layout, training, momentum, epsilon, sums, squares, in[0].as<const T>(), in[1].as<const A>(),
        in[2].as<const A>(), out[0].as<T>(), out[1].as<A>(), out[2].as<A>(), out[3].as<A>(), out[4].as<A>());
  });
  detail::check_cuda(cudaGetLastError(), "starting batch_norm");
}

// Inputs: gradient, x, gamma, used mean, 1 / deviation. Outputs: gradients of x, gamma, beta.
void backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const Channels layout(in[0].shape);
  if (layout.channels == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "batch_norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = accumulator_t<T>;
    const unsigned blocks = blocks_for(layout.blocks());
    const int threads = threads_for(layout.count() / layout.parts, kMostThreads);
    double* const sums = static_cast<double*>(context.workspace);
    if (have_channels_last(in))
      return backward_channels_last<T>(layout.count(), layout.channels, of(attributes).training, in[0].as<const T>(),
                                       in[1].as<const T>(), in[2].as<const A>(), in[3].as<const A>(),
                                       in[4].as<const A>(), out[0].as<T>(), out[1].as<A>(), out[2].as<A>(), sums,
                                       stream);
    double* const products = sums + layout.blocks();
    if (layout.parts > 1)
      sum_gradients_of_parts<<<blocks, threads, 0, stream>>>(layout, in[0].as<const T>(), in[1].as<const T>(),
                                                             in[3].as<const A>(), sums, products);
    backward_channels<<<blocks, threads, 0, stream>>>(
        layout, of(attributes).training, sums, products, in[0].as<const T>(), in[1].as<const T>(), in[2].as<const A>(),
        in[3].as<const A>(), in[4].as<const A>(), out[0].as<T>(), out[1].as<A>(), out[2].as<A>());
  });
  detail::check_cuda(cudaGetLastError(), "starting batch_norm_backward");
}

std::size_t sums_of_parts(const std::vector<NDArray>& inputs, const void*) {
  if (inputs[0].device().kind != DeviceKind::kCuda) return 0;
  const Channels layout(inputs[0].shape());
  return have_channels_last(inputs) ? column_sums_workspace(layout.count(), layout.channels) : layout.workspace_bytes();
}

}  // namespace

OpDef batch_norm_on_cuda(OpDef op) { return std::move(op).cuda(forward_cuda).workspace(sums_of_parts); }
OpDef batch_norm_backward_on_cuda(OpDef op) { return std::move(op).cuda(backward_cuda).workspace(sums_of_parts); }

}  // namespace paceline
