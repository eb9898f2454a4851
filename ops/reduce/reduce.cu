#include "reduce/functors.h"
#include "reduce/plan.h"

#include "shared/block.cuh"

namespace paceline {

using namespace functors;

namespace {

constexpr std::size_t kPartBytes = 8;

template <class Op>
struct Combine {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return Op::template combine<A>(a, b);
  }
};

// The number of parts into which each result is split. It is above 1 where there are few results of many elements each.
std::int64_t parts_of(const ReductionPlan& plan) {
  constexpr std::int64_t kBlocks = 1024;
  constexpr std::int64_t kElements = 64 * detail::kThreads;  // of a part, at least
  if (plan.kept.count == 0) return 1;
  return std::max<std::int64_t>(1, std::min(kBlocks / plan.kept.count, plan.reduced.count / kElements));
}

// The threads of a line fold one part of a result. They take every parts-th run of blockDim.x vectors, always in the
// same order. `vectors` is the loop nest over the reduced elements, counted in vectors.
template <class Op, int kWidth, class T>
__global__ void fold(const LoopNest kept, const LoopNest vectors, std::int64_t parts, const T* x, total_t<T>* partial,
                     result_t<Op, T>* out) {
  using A = reduction_t<T>;
  using Total = total_t<T>;
  constexpr int kPiece = 32;  // vectors that are added in A
  for (std::int64_t line = first_line(); line < kept.count * parts; line += line_step()) {
    const std::int64_t result = line / parts;
    const T* const from = x + kept.offset(result);
    Total mine = Op::template start<Total>();
    for (std::int64_t i = line % parts * blockDim.x + threadIdx.x; i < vectors.count;) {
      A piece = Op::template start<A>();
#pragma unroll 4
      for (int j = 0; j < kPiece && i < vectors.count; ++j, i += parts * blockDim.x) {
        const auto vector = detail::read_vector<kWidth>(from + vectors.offset(i));
        for (int k = 0; k < kWidth; ++k)
          piece = Op::template combine<A>(piece, Op::map(static_cast<A>(detail::load(vector.at[k]))));
      }
      mine = Op::template combine<Total>(mine, static_cast<Total>(piece));
    }
    const Total total = fold_line(mine, Combine<Op>());
    if (threadIdx.x > 0) continue;
    if (parts > 1)
      partial[line] = total;
    else
      out[result] = detail::convert<result_t<Op, T>>(Op::template finish<Total>(total, vectors.count * kWidth));
  }
}

template <class Op, class T>
__global__ void fold_parts(std::int64_t results, std::int64_t parts, std::int64_t count, const total_t<T>* partial,
                           result_t<Op, T>* out) {
  using Total = total_t<T>;
  for (std::int64_t result = blockIdx.x; result < results; result += gridDim.x) {
    const Total total = fold_values(
        parts, Op::template start<Total>(), [=](std::int64_t i) { return partial[result * parts + i]; }, Combine<Op>());
    if (threadIdx.x == 0) out[result] = detail::convert<result_t<Op, T>>(Op::template finish<Total>(total, count));
  }
}

// Can the reduced elements, neighbours in memory, be read in vectors?
template <int kWidth, class T>
bool in_vectors(const ReductionPlan& plan, const T* x) {
  const auto fits = [](const LoopNest& nest, int ndim) {
    bool all = true;
    for (int d = 0; d < ndim; ++d) all = all && nest.strides[d] % kWidth == 0;
    return all;
  };
  const int last = plan.reduced.ndim - 1;
  return last >= 0 && plan.reduced.strides[last] == 1 && plan.reduced.sizes[last] % kWidth == 0 &&
         fits(plan.reduced, last) && fits(plan.kept, plan.kept.ndim) && detail::is_aligned<kWidth>(x);
}

// The workspace takes the partial result of each part, where results have several parts.
template <class Op>
void reduce_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const auto& how = *static_cast<const ReduceAttributes*>(attributes);
  const ReductionPlan plan = make_plan(in[0].shape, reduced_axes("reduce", in[0].shape, how));
  if (plan.kept.count == 0) return;
  const std::int64_t parts = parts_of(plan);
  const cudaStream_t stream = detail::stream_of(context);
  visit_dtype(in[0].dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (kReduces<Op, T>) {
      static_assert(sizeof(total_t<T>) <= kPartBytes);
      const T* const x = in[0].as<const T>();
      auto* const partial = static_cast<total_t<T>*>(context.workspace);
      auto* const results = out[0].as<result_t<Op, T>>();
      const LineGrid grid(plan.kept.count * parts, plan.reduced.count / parts * static_cast<std::int64_t>(sizeof(T)),
                          detail::kThreads);
      constexpr int kWidth = std::is_integral_v<T> ? 1 : detail::kVectorWidth<T>;
      if (kWidth > 1 && in_vectors<kWidth>(plan, x)) {
        LoopNest vectors = plan.reduced;
        vectors.count /= kWidth;
        vectors.sizes[vectors.ndim - 1] /= kWidth;
        vectors.strides[vectors.ndim - 1] = kWidth;
        fold<Op, kWidth><<<grid.blocks, grid.threads, 0, stream>>>(plan.kept, vectors, parts, x, partial, results);
      } else {
        fold<Op, 1><<<grid.blocks, grid.threads, 0, stream>>>(plan.kept, plan.reduced, parts, x, partial, results);
      }
      if (parts > 1)
        fold_parts<Op, T><<<blocks_for(plan.kept.count), threads_for(parts), 0, stream>>>(
            plan.kept.count, parts, plan.reduced.count, partial, results);
    }
  });
  detail::check_cuda(cudaGetLastError(), "starting a reduction");
}

template <class Op>
OpDef with_cuda(OpDef op) {
  return std::move(op).cuda(reduce_cuda<Op>).workspace([](const std::vector<NDArray>& inputs, const void* how) {
    const NDArray& x = inputs[0];
    if (x.device().kind != DeviceKind::kCuda) return std::size_t{0};
    const auto& attributes = *static_cast<const ReduceAttributes*>(how);
    const ReductionPlan plan = make_plan(x.shape(), reduced_axes("reduce", x.shape(), attributes));
    const std::int64_t parts = parts_of(plan);
    return parts > 1 ? static_cast<std::size_t>(plan.kept.count * parts) * kPartBytes : 0;
  });
}

// One thread per product.
template <class T>
__global__ void gradients_of_products(const ReductionPlan plan, const T* gradient, const T* x, T* dx) {
  for (std::int64_t i = detail::first_index(); i < plan.kept.count; i += detail::index_step())
    products_of_others(plan, i, gradient, x, dx);
}

void prod_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                        const void* attributes) {
  const auto& how = *static_cast<const ReduceAttributes*>(attributes);
  const ReductionPlan plan = make_plan(in[1].shape, reduced_axes("prod_backward", in[1].shape, how));
  const cudaStream_t stream = detail::stream_of(context);
  visit_floating(in[1].dtype, "prod_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    gradients_of_products<T><<<detail::grid_for(plan.kept.count), detail::kThreads, 0, stream>>>(
        plan, in[0].as<const T>(), in[1].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting the gradient of a product");
}

}  // namespace

OpDef sum_on_cuda(OpDef op) { return with_cuda<Sum>(std::move(op)); }
OpDef mean_on_cuda(OpDef op) { return with_cuda<Mean>(std::move(op)); }
OpDef max_on_cuda(OpDef op) { return with_cuda<Max>(std::move(op)); }
OpDef min_on_cuda(OpDef op) { return with_cuda<Min>(std::move(op)); }
OpDef prod_on_cuda(OpDef op) { return with_cuda<Prod>(std::move(op)); }
OpDef l1_norm_on_cuda(OpDef op) { return with_cuda<L1Norm>(std::move(op)); }
OpDef l2_norm_on_cuda(OpDef op) { return with_cuda<L2Norm>(std::move(op)); }
OpDef max_norm_on_cuda(OpDef op) { return with_cuda<MaxNorm>(std::move(op)); }
OpDef prod_backward_on_cuda(OpDef op) { return std::move(op).cuda(prod_backward_cuda); }
OpDef lp_norm_on_cuda(OpDef op) { return op; }
OpDef logsumexp_on_cuda(OpDef op) { return op; }

}  // namespace paceline
