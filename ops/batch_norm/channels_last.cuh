#pragma once
// Batch norm of arrays whose channels are last in memory: a matrix with a column for each channel. Statistics read x
// once, the result once more.

#include "shared/column_sums.cuh"

namespace paceline {

template <class A>
struct ChannelStatistics {
  A *mean, *inverse_deviation, *running_mean, *running_variance;
};

// Of the distance to the first row, and of its square: values far from 0 keep their digits, but where the first row is
// k deviations from the mean, k^2 roundings of the accumulator are lost of the variance.
template <int kWidth, class T, class A>
struct StatisticsTerms {
  std::int64_t channels;
  const T* x;

  __device__ void operator()(std::int64_t row, std::int64_t channel, A* sum, A* squares) const {
    const auto first = detail::read_vector<kWidth>(x + channel);
    const auto values = detail::read_vector<kWidth>(x + row * channels + channel);
    for (int k = 0; k < kWidth; ++k) {
      const A distance = detail::load(values.at[k]) - detail::load(first.at[k]);
      sum[k] += distance;
      squares[k] += distance * distance;
    }
  }
};

template <class T, class A>
struct FinishStatistics {
  double count, momentum, epsilon;
  const T* x;
  ChannelStatistics<A> out;

  __device__ void operator()(std::int64_t channel, double sum, double squares) const {
    const double distance = sum / count;
    const double mean = static_cast<double>(detail::load(x[channel])) + distance;
    const double variance = max(0.0, squares / count - distance * distance);
    const auto mixed = [this](A old, double now) {
      return static_cast<A>(momentum * static_cast<double>(old) + (1 - momentum) * now);
    };
    out.running_mean[channel] = mixed(out.running_mean[channel], mean);
    out.running_variance[channel] = mixed(out.running_variance[channel], variance);
    out.mean[channel] = static_cast<A>(mean);
    out.inverse_deviation[channel] = static_cast<A>(1 / std::sqrt(variance + epsilon));
  }
};

template <class A>
__global__ void take_running_statistics(std::int64_t channels, double epsilon, const ChannelStatistics<A> statistics) {
  for (std::int64_t c = detail::first_index(); c < channels; c += detail::index_step()) {
    statistics.mean[c] = statistics.running_mean[c];
    statistics.inverse_deviation[c] =
        static_cast<A>(1 / std::sqrt(static_cast<double>(statistics.running_variance[c]) + epsilon));
  }
}

constexpr int kRowsAhead = 4;  // that a thread reads before it writes the first

// A thread has kWidth channels, whose numbers it reads once (of_channels()), and every blockDim.y-th row of those of
// its block.
template <int kWidth, class Write>
__global__ void __launch_bounds__(kThreadsOfChunk)
    write_rows(std::int64_t rows, std::int64_t channels, std::int64_t rows_of_block, const Write write) {
  const std::int64_t channel = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWidth;
  if (channel >= channels) return;
  const auto of_channels = write.of_channels(channel);
  const std::int64_t end = min((std::int64_t{blockIdx.y} + 1) * rows_of_block, rows);
  for (std::int64_t first = blockIdx.y * rows_of_block + threadIdx.y; first < end; first += kRowsAhead * blockDim.y) {
    typename Write::Read read[kRowsAhead];
#pragma unroll
    for (int ahead = 0; ahead < kRowsAhead; ++ahead)
      if (const std::int64_t row = first + ahead * blockDim.y; row < end)
        read[ahead] = write.read(row * channels + channel);
#pragma unroll
    for (int ahead = 0; ahead < kRowsAhead; ++ahead)
      if (const std::int64_t row = first + ahead * blockDim.y; row < end)
        write.write(row * channels + channel, of_channels, read[ahead]);
  }
}

template <int kWidth, class Write>
void start_writing_rows(std::int64_t rows, std::int64_t channels, const Write& write, cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = 4096;
  if (rows == 0) return;
  const dim3 threads = threads_of_columns<kWidth>(channels);
  const std::int64_t tiles = tiles_of_columns<kWidth>(channels, threads), least = kRowsAhead * threads.y;
  const std::int64_t most = std::max<std::int64_t>(1, kMostBlocks / tiles);
  const std::int64_t wanted = std::min((rows + least - 1) / least, most);
  const std::int64_t rows_of_block = (rows + wanted - 1) / wanted;
  const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block));
  write_rows<kWidth><<<blocks, threads, 0, stream>>>(rows, channels, rows_of_block, write);
}

template <int kWidth, class T, class A>
struct Normalized {
  const T* x;
  const A *gamma, *beta, *mean, *inverse_deviation;
  T* y;

  using Read = detail::Vector<T, kWidth>;
  struct Channels {
    A center[kWidth], slope[kWidth], shift[kWidth];
  };

  __device__ Channels of_channels(std::int64_t channel) const {
    Channels result;
    for (int k = 0; k < kWidth; ++k) {
      result.center[k] = mean[channel + k];
      result.slope[k] = inverse_deviation[channel + k] * gamma[channel + k];
      result.shift[k] = beta[channel + k];
    }
    return result;
  }
  __device__ Read read(std::int64_t at) const { return detail::read_vector<kWidth>(x + at); }
  __device__ void write(std::int64_t at, const Channels& of, const Read& values) const {
    detail::Vector<T, kWidth> result;
    for (int k = 0; k < kWidth; ++k)
      result.at[k] = detail::stored<T>((detail::load(values.at[k]) - of.center[k]) * of.slope[k] + of.shift[k]);
    detail::write_vector(y + at, result);
  }
};

// Of the gradient times the distance from the mean, and of the gradient.
template <int kWidth, class T, class A>
struct GradientTerms {
  std::int64_t channels;
  const T *dy, *x;
  const A* mean;

  __device__ void operator()(std::int64_t row, std::int64_t channel, A* product, A* sum) const {
    const auto of_dy = detail::read_vector<kWidth>(dy + row * channels + channel);
    const auto of_x = detail::read_vector<kWidth>(x + row * channels + channel);
    for (int k = 0; k < kWidth; ++k) {
      const A gradient = detail::load(of_dy.at[k]);
      product[k] += gradient * (detail::load(of_x.at[k]) - mean[channel + k]);
      sum[k] += gradient;
    }
  }
};

template <class A>
struct FinishGradients {
  const A* inverse_deviation;
  A *gamma_gradient, *beta_gradient;

  __device__ void operator()(std::int64_t channel, double product, double sum) const {
    gamma_gradient[channel] = static_cast<A>(product * static_cast<double>(inverse_deviation[channel]));
    beta_gradient[channel] = static_cast<A>(sum);
  }
};

template <int kWidth, class T, class A>
struct InputGradient {
  bool training;
  A share;  // of a row
  const T *dy, *x;
  const A *gamma, *mean, *inverse_deviation, *gamma_gradient, *beta_gradient;
  T* dx;

  struct Read {
    detail::Vector<T, kWidth> dy, x;
  };
  struct Channels {
    A center[kWidth], slope[kWidth], mean_gradient[kWidth], mean_product[kWidth];
  };

  __device__ Channels of_channels(std::int64_t channel) const {
    Channels result;
    for (int k = 0; k < kWidth; ++k) {
      const A inverse = inverse_deviation[channel + k];
      result.center[k] = mean[channel + k];
      result.slope[k] = gamma[channel + k] * inverse;
      result.mean_gradient[k] = share * beta_gradient[channel + k];
      result.mean_product[k] = share * gamma_gradient[channel + k] * inverse;
    }
    return result;
  }
  __device__ Read read(std::int64_t at) const {
    return {detail::read_vector<kWidth>(dy + at), detail::read_vector<kWidth>(x + at)};
  }
  __device__ void write(std::int64_t at, const Channels& of, const Read& values) const {
    detail::Vector<T, kWidth> result;
    for (int k = 0; k < kWidth; ++k) {
      A gradient = detail::load(values.dy.at[k]);
      if (training)
        gradient -= of.mean_gradient[k] + (detail::load(values.x.at[k]) - of.center[k]) * of.mean_product[k];
      result.at[k] = detail::stored<T>(of.slope[k] * gradient);
    }
    detail::write_vector(dx + at, result);
  }
};

template <class T, class A>
void normalize_channels_last(std::int64_t rows, std::int64_t channels, bool training, double momentum, double epsilon,
                             const T* x, const A* gamma, const A* beta, T* y, const ChannelStatistics<A>& statistics,
                             double* workspace, cudaStream_t stream) {
  with_vectors<T>(channels, 1, {x, y}, [&]<int kWidth>(Width<kWidth>) {
    if (training)
      sum_columns<kWidth, A>(rows, channels, StatisticsTerms<kWidth, T, A>{channels, x},
                             FinishStatistics<T, A>{static_cast<double>(rows), momentum, epsilon, x, statistics},
                             workspace, stream);
    else
      take_running_statistics<<<detail::grid_for(channels), detail::kThreads, 0, stream>>>(channels, epsilon,
                                                                                           statistics);
    const Normalized<kWidth, T, A> write{x, gamma, beta, statistics.mean, statistics.inverse_deviation, y};
    start_writing_rows<kWidth>(rows, channels, write, stream);
  });
  detail::check_cuda(cudaGetLastError(), "starting batch_norm");
}

template <class T, class A>
void backward_channels_last(std::int64_t rows, std::int64_t channels, bool training, const T* dy, const T* x,
                            const A* gamma, const A* mean, const A* inverse_deviation, T* dx, A* gamma_gradient,
                            A* beta_gradient, double* workspace, cudaStream_t stream) {
  with_vectors<T>(channels, 1, {dy, x, dx}, [&]<int kWidth>(Width<kWidth>) {
    sum_columns<kWidth, A>(rows, channels, GradientTerms<kWidth, T, A>{channels, dy, x, mean},
                           FinishGradients<A>{inverse_deviation, gamma_gradient, beta_gradient}, workspace, stream);
    const InputGradient<kWidth, T, A> write{
        training, A(1) / static_cast<A>(rows), dy, x, gamma, mean, inverse_deviation, gamma_gradient, beta_gradient,
        dx};
    start_writing_rows<kWidth>(rows, channels, write, stream);
  });
  detail::check_cuda(cudaGetLastError(), "starting batch_norm_backward");
}

}  // namespace paceline
