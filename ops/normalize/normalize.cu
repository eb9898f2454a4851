#include "normalize/normalize.h"

#include "shared/column_sums.cuh"

namespace paceline {

namespace {

// Rows of the last `axes` axes.
struct Rows {
  std::int64_t count = 1, size = 1;

  Rows(const Shape& shape, int axes) {
    for (int i = 0; i < shape.ndim(); ++i) (i < shape.ndim() - axes ? count : size) *= shape[i];
  }
};

// A line of `first`, and of as many of the others as `kMore` says.
template <class T, int kWidth, int kMore>
__device__ auto line_of(std::int64_t size, const T* first, const T* second, const T* third) {
  if constexpr (kMore == 0)
    return Line<T, kWidth>(size, 1, first);
  else if constexpr (kMore == 1)
    return Line<T, kWidth, 2>(size, 1, first, second);
  else
    return Line<T, kWidth, 3>(size, 1, first, second, third);
}

// Three operands in registers leave room for fewer threads.
constexpr int kMostThreads = kMostThreadsOfLine / 2;

template <int kWidth, int kParameters, class T, class A>
__global__ void __launch_bounds__(kMostThreads)
    standardize_rows(const Rows rows, bool centered, A epsilon, const T* x, const T* scale, const T* shift, T* y,
                     A* means, A* inverse_deviation) {
  const A count = static_cast<A>(rows.size);
  for (std::int64_t row = first_line(); row < rows.count; row += line_step()) {
    const auto in = line_of<T, kWidth, kParameters>(rows.size, x + row * rows.size, scale, shift);
    const A mean = centered ? in.sum([](const A* v) { return v[0]; }) / count : A(0);
    const A variance = in.sum([=](const A* v) { return (v[0] - mean) * (v[0] - mean); }) / count;
    const A inverse = A(1) / std::sqrt(variance + epsilon);
    if (threadIdx.x == 0) {
      means[row] = mean;
      inverse_deviation[row] = inverse;
    }
    in.write(y + row * rows.size, [=](std::int64_t, const A* v) {
      A result = (v[0] - mean) * inverse;
      if constexpr (kParameters > 0) result *= v[1];
      if constexpr (kParameters > 1) result += v[2];
      return result;
    });
  }
}

template <int kWidth, int kParameters, class T, class A>
__global__ void __launch_bounds__(kMostThreads)
    backward_rows(const Rows rows, bool centered, const T* dy, const T* x, const A* means, const A* inverse_deviation,
                  const T* scale, T* dx) {
  const A count = static_cast<A>(rows.size);
  for (std::int64_t row = first_line(); row < rows.count; row += line_step()) {
    const std::int64_t first = row * rows.size;
    const auto in = line_of<T, kWidth, 1 + kParameters>(rows.size, dy + first, x + first, scale);
    const A mean = means[row], inverse = inverse_deviation[row];
    const auto gradient = [](const A* v) {
      if constexpr (kParameters > 0)
        return v[0] * v[2];
      else
        return v[0];
    };
    const auto standard = [=](const A* v) { return (v[1] - mean) * inverse; };
    const A shared = centered ? in.sum(gradient) / count : A(0);
    const A along = in.sum([=](const A* v) { return gradient(v) * standard(v); }) / count;
    in.write(dx + first,
             [=](std::int64_t, const A* v) { return inverse * (gradient(v) - shared - standard(v) * along); });
  }
}

// What a row adds to the gradients of scale and shift.
template <int kWidth, class T, class A>
struct ParameterTerms {
  std::int64_t size;
  const T *dy, *x;
  const A *means, *inverse_deviation;

  __device__ void operator()(std::int64_t row, std::int64_t column, A* scale, A* shift) const {
    const auto of_dy = detail::read_vector<kWidth>(dy + row * size + column);
    const auto of_x = detail::read_vector<kWidth>(x + row * size + column);
    const A mean = means[row], inverse = inverse_deviation[row];
    for (int k = 0; k < kWidth; ++k) {
      const A gradient = detail::load(of_dy.at[k]);
      scale[k] += gradient * ((detail::load(of_x.at[k]) - mean) * inverse);
      shift[k] += gradient;
    }
  }
};

template <class T>
struct ParameterGradients {
  T *scale, *shift;

  __device__ void operator()(std::int64_t column, double of_scale, double of_shift) const {
    scale[column] = detail::stored<T>(static_cast<accumulator_t<T>>(of_scale));
    shift[column] = detail::stored<T>(static_cast<accumulator_t<T>>(of_shift));
  }
};

const StandardizeAttributes& of(const void* attributes) {
  return *static_cast<const StandardizeAttributes*>(attributes);
}

LineGrid grid_of(const Rows& rows, DType dtype) {
  return {rows.count, rows.size * static_cast<std::int64_t>(size_of(dtype)), kMostThreads};
}

// Calls start(Width<kParameters>) with the number of parameters given.
template <class Start>
void with_parameters(std::size_t given, const Start& start) {
  if (given == 0)
    start(Width<0>());
  else if (given == 1)
    start(Width<1>());
  else
    start(Width<2>());
}

void standardize_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                      const void* attributes) {
  const Rows rows(in[0].shape, of(attributes).axes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "standardize", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const LineGrid grid = grid_of(rows, in[0].dtype);
    const T* scale = in.size() > 1 ? in[1].as<const T>() : nullptr;
    const T* shift = in.size() > 2 ? in[2].as<const T>() : nullptr;
    with_parameters(in.size() - 1, [&]<int kParameters>(Width<kParameters>) {
      with_vectors<T>(rows.size, 1, {in[0].data, out[0].data, scale, shift}, [&]<int kWidth>(Width<kWidth>) {
        standardize_rows<kWidth, kParameters><<<grid.blocks, grid.threads, 0, stream>>>(
            rows, of(attributes).centered, static_cast<A>(of(attributes).epsilon), in[0].as<const T>(), scale, shift,
            out[0].as<T>(), out[1].as<A>(), out[2].as<A>());
      });
    });
  });
  detail::check_cuda(cudaGetLastError(), "starting standardize");
}

void backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                   const void* attributes) {
  const Rows rows(in[0].shape, of(attributes).axes);
  if (in[0].size() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "standardize_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const LineGrid grid = grid_of(rows, in[0].dtype);
    const T* scale = in.size() > 4 ? in[4].as<const T>() : nullptr;
    with_vectors<T>(rows.size, 1, {in[0].data, in[1].data, scale, out[0].data}, [&]<int kWidth>(Width<kWidth>) {
      const auto start = [&]<int kParameters>(Width<kParameters>) {
        backward_rows<kWidth, kParameters><<<grid.blocks, grid.threads, 0, stream>>>(
            rows, of(attributes).centered, in[0].as<const T>(), in[1].as<const T>(), in[2].as<const A>(),
            in[3].as<const A>(), scale, out[0].as<T>());
      };
      scale ? start(Width<1>()) : start(Width<0>());
    });
  });
  detail::check_cuda(cudaGetLastError(), "starting standardize_backward");
}

void parameters_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                              const void* attributes) {
  const Rows rows(in[0].shape, of(attributes).axes);
  if (rows.size == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[0].dtype, "standardize_backward_parameters", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    with_vectors<T>(rows.size, 1, {in[0].data, in[1].data}, [&]<int kWidth>(Width<kWidth>) {
      const ParameterTerms<kWidth, T, A> terms{rows.size, in[0].as<const T>(), in[1].as<const T>(), in[2].as<const A>(),
                                               in[3].as<const A>()};
      sum_columns<kWidth, A>(rows.count, rows.size, terms, ParameterGradients<T>{out[0].as<T>(), out[1].as<T>()},
                             static_cast<double*>(context.workspace), stream);
    });
  });
  detail::check_cuda(cudaGetLastError(), "starting standardize_backward_parameters");
}

std::size_t parameters_workspace(const std::vector<NDArray>& inputs, const void* attributes) {
  const Rows rows(inputs[1].shape(), of(attributes).axes);
  return inputs[1].device().kind == DeviceKind::kCuda ? column_sums_workspace(rows.count, rows.size) : 0;
}

}  // namespace

OpDef standardize_on_cuda(OpDef op) { return std::move(op).cuda(standardize_cuda); }
OpDef standardize_backward_on_cuda(OpDef op) { return std::move(op).cuda(backward_cuda); }
OpDef standardize_backward_parameters_on_cuda(OpDef op) {
  return std::move(op).cuda(parameters_backward_cuda).workspace(parameters_workspace);
}

}  // namespace paceline
