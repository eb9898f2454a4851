#include "batch_norm/batch_norm.h"

#include "batch_norm/channels_last.cuh"
#include "shared/block.cuh"
#include "shared/channels.h"

namespace paceline {

namespace {

// The elements of one channel: `plane` neighbours of each example, which are read and written in vectors where whole
// ones fit. Few channels of many elements are shared out among
// several blocks each: every parts-th run of elements for one, their sums meeting in the workspace.
struct Channels {
  std::int64_t examples, channels, plane = 1, parts = 1;

  explicit Channels(const Shape& x) : examples(x[0]), channels(x[1]) {
    constexpr std::int64_t kBlocks = 512;
    constexpr std::int64_t kElements = 2 * kMostThreads;  // of a block, at least
    for (int i = 2; i < x.ndim(); ++i) plane *= x[i];
    if (channels > 0) parts = std::max<std::int64_t>(1, std::min(kBlocks / channels, count() / kElements));
  }
  PACELINE_HOST_DEVICE std::int64_t count() const { return examples * plane; }
  // Element i of a channel.
  PACELINE_HOST_DEVICE std::int64_t at(std::int64_t channel, std::int64_t i) const {
    return (i / plane * channels + channel) * plane + i % plane;
  }
  std::int64_t blocks() const { return channels * parts; }
  // Of a block, for vectors of `width` elements.
  int threads(int width) const { return threads_for(count() / parts / width, kMostThreads); }
  // Of two sums for each block.
  std::size_t workspace_bytes() const {
    return parts > 1 ? 2 * static_cast<std::size_t>(blocks()) * sizeof(double) : 0;
  }
};

// Calls body(place in memory) for the vectors of kWidth elements of a part of a channel that are this thread's.
template <int kWidth, class Body>
__device__ void for_each(const Channels& layout, std::int64_t channel, std::int64_t part, const Body& body) {
  const std::int64_t step = layout.parts * blockDim.x * kWidth;
  for (std::int64_t i = (part * blockDim.x + threadIdx.x) * kWidth; i < layout.count(); i += step)
    body(layout.at(channel, i));
}

// What is summed: add(place, sum) adds a vector's numbers to the sum.
template <int kWidth, class T, class A>
struct Values {
  const T* x;
  __device__ void operator()(std::int64_t at, A& sum) const {
    const auto values = detail::read_vector<kWidth>(x + at);
    for (int k = 0; k < kWidth; ++k) sum += detail::load(values.at[k]);
  }
};

template <int kWidth, class T, class A>
struct SquaredDistances {
  const T* x;
  A center;
  __device__ void operator()(std::int64_t at, A& sum) const {
    const auto values = detail::read_vector<kWidth>(x + at);
    for (int k = 0; k < kWidth; ++k) {
      const A distance = detail::load(values.at[k]) - center;
      sum += distance * distance;
    }
  }
};

template <int kWidth, class T, class A>
struct GradientProducts {
  const T *dy, *x;
  A center;
  __device__ void operator()(std::int64_t at, A& sum) const {
    const auto of_dy = detail::read_vector<kWidth>(dy + at);
    const auto of_x = detail::read_vector<kWidth>(x + at);
    for (int k = 0; k < kWidth; ++k) sum += detail::load(of_dy.at[k]) * (detail::load(of_x.at[k]) - center);
  }
};

// Threads sum in the accumulator's type, their sums are added in float64.
template <template <int, class, class> class Terms, int kWidth, class T, class A>
__device__ double part_sum(const Channels& layout, std::int64_t channel, std::int64_t part,
                           const Terms<kWidth, T, A>& add) {
  A mine = 0;
  for_each<kWidth>(layout, channel, part, [&](std::int64_t at) { add(at, mine); });
  return fold_block(static_cast<double>(mine), Plus());
}

// `of_parts`: what part_sum() gave for each part of each channel, where there are several.
template <class Terms>
__device__ double channel_sum(const Channels& layout, std::int64_t channel, const double* of_parts, const Terms& add) {
  if (layout.parts == 1) return part_sum(layout, channel, 0, add);
  return sum_values<double>(layout.parts, [=](std::int64_t i) { return of_parts[channel * layout.parts + i]; });
}

template <int kWidth, class T, class A>
__global__ void __launch_bounds__(kMostThreads) sum_parts(const Channels layout, const T* x, double* sums) {
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts;
    const double sum = part_sum(layout, c, block % layout.parts, Values<kWidth, T, A>{x});
    if (threadIdx.x == 0) sums[block] = sum;
  }
}

template <int kWidth, class T, class A>
__global__ void __launch_bounds__(kMostThreads)
    sum_squares_of_parts(const Channels layout, const T* x, const double* sums, double* squares) {
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts;
    const double all = channel_sum(layout, c, sums, Values<kWidth, T, A>{x});
    const A center = static_cast<A>(all / static_cast<double>(layout.count()));
    const double sum = part_sum(layout, c, block % layout.parts, SquaredDistances<kWidth, T, A>{x, center});
    if (threadIdx.x == 0) squares[block] = sum;
  }
}

template <int kWidth, class T, class A>
__global__ void __launch_bounds__(kMostThreads)
    normalize_channels(const Channels layout, bool training, double momentum, double epsilon, const double* sums,
                       const double* squares, const T* x, const A* gamma, const A* beta, T* y, A* used_mean,
                       A* inverse_deviation, A* running_mean, A* running_variance) {
  const auto count = static_cast<double>(layout.count());
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts, part = block % layout.parts;
    const bool notes = threadIdx.x == 0 && part == 0;
    double mean = 0, variance = 0;
    if (training && count > 0) {
      mean = channel_sum(layout, c, sums, Values<kWidth, T, A>{x}) / count;
      const SquaredDistances<kWidth, T, A> distances{x, static_cast<A>(mean)};
      variance = channel_sum(layout, c, squares, distances) / count;
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
    for_each<kWidth>(layout, c, part, [=](std::int64_t at) {
      const auto values = detail::read_vector<kWidth>(x + at);
      detail::Vector<T, kWidth> result;
      for (int k = 0; k < kWidth; ++k)
        result.at[k] = detail::stored<T>((detail::load(values.at[k]) - center) * slope + shift);
      detail::write_vector(y + at, result);
    });
  }
}

// Of the gradient, and of the gradient times the distance from the mean.
template <int kWidth, class T, class A>
__global__ void __launch_bounds__(kMostThreads) sum_gradients_of_parts(const Channels layout, const T* dy, const T* x,
                                                                       const A* mean, double* sums, double* products) {
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts, part = block % layout.parts;
    const double sum = part_sum(layout, c, part, Values<kWidth, T, A>{dy});
    const double product = part_sum(layout, c, part, GradientProducts<kWidth, T, A>{dy, x, mean[c]});
    if (threadIdx.x > 0) continue;
    sums[block] = sum;
    products[block] = product;
  }
}

template <int kWidth, class T, class A>
__global__ void __launch_bounds__(kMostThreads)
    backward_channels(const Channels layout, bool training, const double* sums, const double* products, const T* dy,
                      const T* x, const A* gamma, const A* mean, const A* inverse_deviation, T* dx, A* gamma_gradient,
                      A* beta_gradient) {
  const auto count = static_cast<double>(layout.count());
  for (std::int64_t block = blockIdx.x; block < layout.channels * layout.parts; block += gridDim.x) {
    const std::int64_t c = block / layout.parts, part = block % layout.parts;
    const A center = mean[c];
    const A inverse = inverse_deviation[c];
    const double sum = channel_sum(layout, c, sums, Values<kWidth, T, A>{dy});
    const GradientProducts<kWidth, T, A> terms{dy, x, center};
    const double product = channel_sum(layout, c, products, terms) * static_cast<double>(inverse);
    if (threadIdx.x == 0 && part == 0) {
      gamma_gradient[c] = static_cast<A>(product);
      beta_gradient[c] = static_cast<A>(sum);
    }
    const A slope = gamma[c] * inverse;
    const A mean_gradient = static_cast<A>(sum / count);
    const A mean_product = static_cast<A>(product / count) * inverse;
    for_each<kWidth>(layout, c, part, [=](std::int64_t at) {
      const auto of_dy = detail::read_vector<kWidth>(dy + at);
      const auto of_x = detail::read_vector<kWidth>(x + at);
      detail::Vector<T, kWidth> result;
      for (int k = 0; k < kWidth; ++k) {
        A gradient = detail::load(of_dy.at[k]);
        if (training) gradient -= mean_gradient + (detail::load(of_x.at[k]) - center) * mean_product;
        result.at[k] = detail::stored<T>(slope * gradient);
      }
      detail::write_vector(dx + at, result);
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
    double* const sums = static_cast<double*>(context.workspace);
    if (have_channels_last(in)) {
      const ChannelStatistics<A> statistics{out[1].as<A>(), out[2].as<A>(), out[3].as<A>(), out[4].as<A>()};
      return normalize_channels_last<T>(layout.count(), layout.channels, training, momentum, epsilon,
                                        in[0].as<const T>(), in[1].as<const A>(), in[2].as<const A>(), out[0].as<T>(),
                                        statistics, sums, stream);
    }
    double* const squares = sums + layout.blocks();
    const T* const x = in[0].as<const T>();
    with_vectors<T>(layout.plane, 1, {x, out[0].data}, [&]<int kWidth>(Width<kWidth>) {
      const unsigned blocks = blocks_for(layout.blocks());
      const int threads = layout.threads(kWidth);
      if (training && layout.parts > 1) {
        sum_parts<kWidth, T, A><<<blocks, threads, 0, stream>>>(layout, x, sums);
        sum_squares_of_parts<kWidth, T, A><<<blocks, threads, 0, stream>>>(layout, x, sums, squares);
      }
      normalize_channels<kWidth, T, A><<<blocks, threads, 0, stream>>>(
          layout, training, momentum, epsilon, sums, squares, x, in[1].as<const A>(), in[2].as<const A>(),
          out[0].as<T>(), out[1].as<A>(), out[2].as<A>(), out[3].as<A>(), out[4].as<A>());
    });
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
    double* const sums = static_cast<double*>(context.workspace);
    if (have_channels_last(in))
      return backward_channels_last<T>(layout.count(), layout.channels, of(attributes).training, in[0].as<const T>(),
                                       in[1].as<const T>(), in[2].as<const A>(), in[3].as<const A>(),
                                       in[4].as<const A>(), out[0].as<T>(), out[1].as<A>(), out[2].as<A>(), sums,
                                       stream);
    double* const products = sums + layout.blocks();
    const T *const dy = in[0].as<const T>(), *const x = in[1].as<const T>();
    with_vectors<T>(layout.plane, 1, {dy, x, out[0].data}, [&]<int kWidth>(Width<kWidth>) {
      const unsigned blocks = blocks_for(layout.blocks());
      const int threads = layout.threads(kWidth);
      if (layout.parts > 1)
        sum_gradients_of_parts<kWidth, T, A>
            <<<blocks, threads, 0, stream>>>(layout, dy, x, in[3].as<const A>(), sums, products);
      backward_channels<kWidth, T, A><<<blocks, threads, 0, stream>>>(
          layout, of(attributes).training, sums, products, dy, x, in[2].as<const A>(), in[3].as<const A>(),
          in[4].as<const A>(), out[0].as<T>(), out[1].as<A>(), out[2].as<A>());
    });
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
