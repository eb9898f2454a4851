// Where cuDNN does not help, convolution by its definition: every sum is one thread's or one block's, in order, for
// every type, group and dilation.
#include "convolution/cudnn.h"
#include "shared/block.cuh"
#include "shared/channels.h"
#include "shared/column_sums.cuh"

namespace paceline {

namespace {

using Places = ConvolutionGeometry::Sizes;

// How x, y and the weights lie: those as the channels of one output channel.
struct Orders {
  ChannelOrder x, y, weight;

  Orders(const ConvolutionGeometry& g, bool last)
      : x{g.in, g.input_places(), last},
        y{g.out, g.output_places(), last},
        weight{g.group_in(), g.kernel[0] * g.kernel[1] * g.kernel[2], last} {}
};

// Number i of a row-major array of `sizes`, axis by axis.
__device__ Places places_of(const Places& sizes, std::int64_t i) {
  return {i / (sizes[1] * sizes[2]), i / sizes[2] % sizes[1], i % sizes[2]};
}

// Calls body(weight, element) for the weights of a kernel that join place `at` with an element of the other array's
// channel, by their numbers; find(axis, place, place of the kernel) is where.
template <class Find, class Body>
__device__ void for_each_weight(const ConvolutionGeometry& g, const Places& at, const Places& other, const Find& find,
                                const Body& body) {
  for (std::int64_t kz = 0; kz < g.kernel[0]; ++kz) {
    const std::int64_t z = find(0, at[0], kz);
    if (z < 0) continue;
    for (std::int64_t ky = 0; ky < g.kernel[1]; ++ky) {
      const std::int64_t y = find(1, at[1], ky);
      if (y < 0) continue;
      for (std::int64_t kx = 0; kx < g.kernel[2]; ++kx) {
        const std::int64_t x = find(2, at[2], kx);
        if (x >= 0) body((kz * g.kernel[1] + ky) * g.kernel[2] + kx, (z * other[1] + y) * other[2] + x);
      }
    }
  }
}

// One thread for each element of the result.
template <class T>
__global__ void forward(const ConvolutionGeometry g, const Orders lie, const T* x, const T* weight, const T* bias,
                        T* y) {
  using A = accumulator_t<T>;
  const std::int64_t total = g.examples * g.out * g.output_places();
  const auto find = [&g](std::size_t axis, std::int64_t at, std::int64_t under) {
    return g.input_place(axis, at, under);
  };
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step()) {
    const std::int64_t example = lie.y.example(i), channel = lie.y.channel(i);
    const std::int64_t first = channel / g.group_out() * g.group_in();
    const Places at = places_of(g.result, lie.y.place(i));
    A sum = bias ? static_cast<A>(bias[channel]) : A(0);
    for (std::int64_t c = 0; c < g.group_in(); ++c)
      for_each_weight(g, at, g.size, find, [&](std::int64_t w, std::int64_t element) {
        sum += static_cast<A>(weight[lie.weight.at(channel, c, w)]) *
               static_cast<A>(x[lie.x.at(example, first + c, element)]);
      });
    y[i] = T(sum);
  }
}

// One thread for each element of x's gradient.
template <class T>
__global__ void backward_data(const ConvolutionGeometry g, const Orders lie, const T* dy, const T* weight,
                              const T* bias, T* dx) {
  using A = accumulator_t<T>;
  const std::int64_t total = g.examples * g.in * g.input_places();
  const auto find = [&g](std::size_t axis, std::int64_t at, std::int64_t under) {
    return g.output_place(axis, at, under);
  };
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step()) {
    const std::int64_t example = lie.x.example(i), channel = lie.x.channel(i);
    const std::int64_t first = channel / g.group_in() * g.group_out();
    const Places at = places_of(g.size, lie.x.place(i));
    A sum = bias ? static_cast<A>(bias[channel]) : A(0);
    for (std::int64_t c = first; c < first + g.group_out(); ++c)
      for_each_weight(g, at, g.result, find, [&](std::int64_t w, std::int64_t element) {
        sum += static_cast<A>(weight[lie.weight.at(c, channel % g.group_in(), w)]) *
               static_cast<A>(dy[lie.y.at(example, c, element)]);
      });
    dx[i] = T(sum);
  }
}

// One block for each weight.
template <class T>
__global__ void backward_weight(const ConvolutionGeometry g, const Orders lie, const T* dy, const T* x, T* dw) {
  using A = accumulator_t<T>;
  const std::int64_t places = g.output_places();
  for (std::int64_t i = blockIdx.x; i < g.out * g.patch(); i += gridDim.x) {
    const std::int64_t channel = lie.weight.example(i);
    const Places under = places_of(g.kernel, lie.weight.place(i));
    const std::int64_t input = channel / g.group_out() * g.group_in() + lie.weight.channel(i);
    const A sum = sum_values<A>(g.examples * places, [&](std::int64_t k) {
      const std::int64_t example = k / places;
      const Places at = places_of(g.result, k % places);
      Places from;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        from[axis] = g.input_place(axis, at[axis], under[axis]);
        if (from[axis] < 0) return A(0);
      }
      const std::int64_t element = (from[0] * g.size[1] + from[1]) * g.size[2] + from[2];
      return static_cast<A>(dy[lie.y.at(example, channel, k % places)]) *
             static_cast<A>(x[lie.x.at(example, input, element)]);
    });
    if (threadIdx.x == 0) dw[i] = T(sum);
  }
}

// One block for each channel, row-major.
template <class T>
__global__ void backward_bias(const ConvolutionGeometry g, const T* dy, T* db) {
  using A = accumulator_t<T>;
  const std::int64_t places = g.output_places();
  for (std::int64_t channel = blockIdx.x; channel < g.out; channel += gridDim.x) {
    const A sum = sum_values<A>(g.examples * places, [=](std::int64_t k) {
      return static_cast<A>(dy[(k / places * g.out + channel) * places + k % places]);
    });
    if (threadIdx.x == 0) db[channel] = T(sum);
  }
}

// The same where the channels are the last.
template <int kWidth, class T, class A>
struct BiasTerms {
  std::int64_t channels;
  const T* dy;

  __device__ void operator()(std::int64_t row, std::int64_t channel, A* sum, A*) const {
    const auto values = detail::read_vector<kWidth>(dy + row * channels + channel);
    for (int k = 0; k < kWidth; ++k) sum[k] += detail::load(values.at[k]);
  }
};

template <class T>
struct FinishBias {
  T* db;

  __device__ void operator()(std::int64_t channel, double sum, double) const { db[channel] = detail::stored<T>(sum); }
};

const ConvolutionAttributes& of(const void* attributes) {
  return *static_cast<const ConvolutionAttributes*>(attributes);
}

// Inputs: x, weight, bias or not.
void forward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const ConvolutionGeometry g = make_geometry("convolution", in[0].shape, in[1].shape, of(attributes));
  if (out[0].size() == 0) return;
  const bool last = have_channels_last(in);
  const void* const bias = in.size() > 2 ? in[2].data : nullptr;
  if (cudnn_convolution(ConvolutionPass::kForward, g,
                        {.x = in[0].data, .weight = in[1].data, .bias = bias, .y = out[0].data}, in[0].dtype, last,
                        context))
    return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "convolution", [&](auto tag) {
    using T = typename decltype(tag)::type;
    forward<<<detail::grid_for(out[0].size()), detail::kThreads, 0, stream>>>(
        g, Orders(g, last), in[0].as<const T>(), in[1].as<const T>(), static_cast<const T*>(bias), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting a convolution");
}

// Inputs: x, weight, bias or not.
void transposed_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                     const void* attributes) {
  const ConvolutionGeometry g =
      transposed_geometry(in[0].shape, in[1].shape, *static_cast<const TransposedConvolutionAttributes*>(attributes));
  if (out[0].size() == 0) return;
  const bool last = have_channels_last(in);
  const void* const bias = in.size() > 2 ? in[2].data : nullptr;
  if (cudnn_convolution(ConvolutionPass::kBackwardData, g,
                        {.weight = in[1].data, .bias = bias, .y_gradient = in[0].data, .x_gradient = out[0].data},
                        in[0].dtype, last, context))
    return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "transposed_convolution", [&](auto tag) {
    using T = typename decltype(tag)::type;
    backward_data<<<detail::grid_for(out[0].size()), detail::kThreads, 0, stream>>>(
        g, Orders(g, last), in[0].as<const T>(), in[1].as<const T>(), static_cast<const T*>(bias), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting a transposed convolution");
}

// Inputs: gradient, x. Outputs: gradients of weight and bias; that of the bias is empty where it is not wanted.
void backward_weight_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                          const void* attributes) {
  const ConvolutionGeometry g = make_geometry("convolution_backward_weight", in[1].shape, out[0].shape, of(attributes));
  const int threads = threads_for(g.examples * g.output_places());
  const bool last = have_channels_last(in);
  const bool done = cudnn_convolution(ConvolutionPass::kBackwardWeight, g,
                                      {.x = in[1].data, .y_gradient = in[0].data, .weight_gradient = out[0].data},
                                      in[0].dtype, last, context);
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "convolution_backward_weight", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (!done && out[0].size() > 0)
      backward_weight<<<blocks_for(out[0].size()), threads, 0, stream>>>(g, Orders(g, last), in[0].as<const T>(),
                                                                         in[1].as<const T>(), out[0].as<T>());
    if (out[1].size() == 0) return;
    const T* const dy = in[0].as<const T>();
    T* const db = out[1].as<T>();
    if (!last) {
      backward_bias<<<blocks_for(g.out), threads, 0, stream>>>(g, dy, db);
      return;
    }
    with_vectors<T>(g.out, 1, {dy}, [&]<int kWidth>(Width<kWidth>) {
      using A = accumulator_t<T>;
      sum_columns<kWidth, A>(g.examples * g.output_places(), g.out, BiasTerms<kWidth, T, A>{g.out, dy},
                             FinishBias<T>{db}, static_cast<double*>(context.workspace), stream);
    });
  });
  detail::check_cuda(cudaGetLastError(), "starting the gradient of a convolution's weights");
}

}  // namespace

OpDef convolution_on_cuda(OpDef op) { return std::move(op).cuda(forward_cuda); }
OpDef convolution_backward_weight_on_cuda(OpDef op) { return std::move(op).cuda(backward_weight_cuda); }
OpDef transposed_convolution_on_cuda(OpDef op) { return std::move(op).cuda(transposed_cuda); }

}  // namespace paceline
