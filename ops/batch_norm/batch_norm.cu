#include "batch_norm/batch_norm.h"

#include "shared/block.cuh"

namespace paceline {

namespace {

// The elements of one channel: `plane` neighbours of each example.
struct Channels {
  std::int64_t examples, channels, plane = 1;

  explicit Channels(const Shape& x) : examples(x[0]), channels(x[1]) {
    for (int i = 2; i < x.ndim(); ++i) plane *= x[i];
  }
  HOST_DEVICE std::int64_t count() const { return examples * plane; }
  // Element i of a channel.
  HOST_DEVICE std::int64_t at(std::int64_t channel, std::int64_t i) const {
    return (i / plane * channels + channel) * plane + i % plane;
  }
};

// Threads sum in the accumulator's type, their sums are added in float64.
template <class A, class Value>
__device__ double channel_sum(std::int64_t count, const Value& value) {
  A mine = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) mine += value(i);
  return fold_block(static_cast<double>(mine), Plus());
}

template <class T, class A>
__global__ void normalize_channels(const Channels layout, bool training, double momentum, double epsilon, const T* x,
                                   const A* gamma, const A* beta, T* y, A* used_mean, A* inverse_deviation,
                                   A* running_mean, A* running_variance) {
  const std::int64_t count = layout.count();
  for (std::int64_t c = blockIdx.x; c < layout.channels; c += gridDim.x) {
    double mean = static_cast<double>(running_mean[c]);
    double variance = static_cast<double>(running_variance[c]);
    if (training && count > 0) {
      const double old_mean = mean, old_variance = variance;
      const auto value = [=](std::int64_t i) { return static_cast<A>(x[layout.at(c, i)]); };
      mean = channel_sum<A>(count, value) / static_cast<double>(count);
      const A center = static_cast<A>(mean);
      variance = channel_sum<A>(count, [=](std::int64_t i) { return (value(i) - center) * (value(i) - center); }) /
                 static_cast<double>(count);
      // Behind the folds, so that every thread has read what was there.
      if (threadIdx.x == 0) {
        running_mean[c] = static_cast<A>(momentum * old_mean + (1 - momentum) * mean);
        running_variance[c] = static_cast<A>(momentum * old_variance + (1 - momentum) * variance);
      }
    }
    const double inverse = 1 / std::sqrt(variance + epsilon);
    if (threadIdx.x == 0) {
      used_mean[c] = static_cast<A>(mean);
      inverse_deviation[c] = static_cast<A>(inverse);
    }
    const A center = static_cast<A>(mean);
    const A slope = static_cast<A>(inverse) * gamma[c];
    const A shift = beta[c];
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const std::int64_t at = layout.at(c, i);
      y[at] = T((static_cast<A>(x[at]) - center) * slope + shift);
    }
  }
}

template <class T, class A>
__global__ void backward_channels(const Channels layout, bool training, const T* dy, const T* x, const A* gamma,
                                  const A* mean, const A* inverse_deviation, T* dx, A* gamma_gradient,
                                  A* beta_gradient) {
  const std::int64_t count = layout.count();
  for (std::int64_t c = blockIdx.x; c < layout.channels; c += gridDim.x) {
    const A center = mean[c];
    const A inverse = inverse_deviation[c];
    const auto gradient = [=](std::int64_t i) { return static_cast<A>(dy[layout.at(c, i)]); };
    const double sum = channel_sum<A>(count, gradient);
    const double product =
        channel_sum<A>(count,
                       [=](std::int64_t i) { return gradient(i) * (static_cast<A>(x[layout.at(c, i)]) - center); }) *
        static_cast<double>(inverse);
    if (threadIdx.x == 0) {
      gamma_gradient[c] = static_cast<A>(product);
      beta_gradient[c] = static_cast<A>(sum);
    }
    const A slope = gamma[c] * inverse;
    const A mean_gradient = static_cast<A>(sum / static_cast<double>(count));
    const A mean_product = static_cast<A>(product / static_cast<double>(count)) * inverse;
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const std::int64_t at = layout.at(c, i);
      const A g = static_cast<A>(dy[at]);
      dx[at] = T(training ? slope * (g - mean_gradient - (static_cast<A>(x[at]) - center) * mean_product) : slope * g);
    }
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
    normalize_channels<<<blocks_for(layout.channels), threads_for(layout.count(), kMostThreads), 0, stream>>>(
        layout, training, momentum, epsilon, in[0].as<const T>(), in[1].as<const A>(), in[2].as<const A>(),
        out[0].as<T>(), out[1].as<A>(), out[2].as<A>(), out[3].as<A>(), out[4].as<A>());
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
    backward_channels<<<blocks_for(layout.channels), threads_for(layout.count(), kMostThreads), 0, stream>>>(
        layout, of(attributes).training, in[0].as<const T>(), in[1].as<const T>(), in[2].as<const A>(),
        in[3].as<const A>(), in[4].as<const A>(), out[0].as<T>(), out[1].as<A>(), out[2].as<A>());
  });
  detail::check_cuda(cudaGetLastError(), "starting batch_norm_backward");
}

}  // namespace

OpDef batch_norm_on_cuda(OpDef op) { return std::move(op).cuda(forward_cuda); }
OpDef batch_norm_backward_on_cuda(OpDef op) { return std::move(op).cuda(backward_cuda); }

}  // namespace paceline
