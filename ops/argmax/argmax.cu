#include "argmax/argmax.h"

#include "shared/block.cuh"
#include "shared/rows.h"

#include <paceline/detail/device_positions.cuh>

namespace paceline {

namespace {

template <class A>
struct Candidate {
  A value;
  std::int64_t at;  // negative: none
};

// The first of the largest (smallest), where NaN counts as more than all others.
template <bool kSmallest>
struct Better {
  template <class A>
  __device__ Candidate<A> operator()(const Candidate<A>& a, const Candidate<A>& b) const {
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    if (a_is_nan != b_is_nan) return a_is_nan ? a : b;
    if (!a_is_nan && a.value != b.value) return (kSmallest ? a.value < b.value : a.value > b.value) ? a : b;
    return a.at < b.at ? a : b;
  }
};

template <bool kSmallest, class T>
__device__ std::int64_t first_best(const T* x, std::int64_t size, std::int64_t step) {
  using A = accumulator_t<T>;
  return fold_values(
             size, Candidate<A>{A(0), -1},
             [=](std::int64_t i) {
               return Candidate<A>{static_cast<A>(x[i * step]), i};
             },
             Better<kSmallest>())
      .at;
}

template <bool kSmallest, class T>
__global__ void best_of_lines(const AxisView view, const T* x, std::int64_t* positions) {
  for (std::int64_t line = blockIdx.x; line < view.lines(); line += gridDim.x) {
    const std::int64_t best = first_best<kSmallest>(x + view.first(line), view.size, view.inner);
    if (threadIdx.x == 0) positions[line] = best;
  }
}

template <class T>
__global__ void count_right(std::int64_t rows, const T* scores, const detail::DevicePositions labels,
                            unsigned long long* count) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t best = first_best<false>(scores + row * labels.limit, labels.limit, 1);
    if (threadIdx.x == 0 && best == labels[row]) atomicAdd(count, 1ull);
  }
}

template <bool kSmallest>
void argmax_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const int axis = static_cast<const ArgmaxAttributes*>(attributes)->axis;
  const AxisView view = around_axis(in[0].shape, normalize_axis(axis, in[0].shape.ndim(), "argmax"));
  if (view.lines() == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_dtype(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    best_of_lines<kSmallest><<<blocks_for(view.lines()), threads_for(view.size), 0, stream>>>(
        view, in[0].as<const T>(), out[0].as<std::int64_t>());
  });
  detail::check_cuda(cudaGetLastError(), "starting argmax");
}

// A label outside the classes counts as wrong.
void top1_count_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                     const void*) {
  const std::int64_t rows = in[0].shape[0], classes = in[0].shape[1];
  const cudaStream_t stream = detail::stream_of(context);
  detail::check_cuda(cudaMemsetAsync(out[0].data, 0, sizeof(std::int64_t), stream), "clearing a count");
  if (rows == 0) return;
  const auto labels =
      detail::device_labels(context, in[1], classes, "[top1_count] label {} at position {} is outside [0, {})",
                            "[top1_count] label {} at position {} is outside [0, {}): it is no whole number");
  visit_dtype(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    count_right<<<blocks_for(rows), threads_for(classes), 0, stream>>>(rows, in[0].as<const T>(), labels,
                                                                       out[0].as<unsigned long long>());
  });
  detail::check_cuda(cudaGetLastError(), "starting top1_count");
}

}  // namespace

OpDef argmax_on_cuda(OpDef op) { return std::move(op).cuda(argmax_cuda<false>); }
OpDef argmin_on_cuda(OpDef op) { return std::move(op).cuda(argmax_cuda<true>); }
OpDef top1_count_on_cuda(OpDef op) { return std::move(op).cuda(top1_count_cuda); }

}  // namespace paceline
