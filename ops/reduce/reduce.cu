#include "reduce/functors.h"
#include "reduce/plan.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline {

using namespace functors;

namespace {

// One block per result. Its threads fold every kThreads-th element, then each other, always in the same order.
template <class Op, class T, class A>
__global__ void fold(const ReductionPlan plan, const T* x, T* out) {
  __shared__ A partial[detail::kThreads];
  for (std::int64_t result = blockIdx.x; result < plan.kept.count; result += gridDim.x) {
    const T* const from = x + plan.kept.offset(result);
    A total = Op::template start<A>();
    for (std::int64_t i = threadIdx.x; i < plan.reduced.count; i += detail::kThreads)
      total = Op::template combine<A>(total, Op::map(static_cast<A>(detail::load(from[plan.reduced.offset(i)]))));
    partial[threadIdx.x] = total;
    for (unsigned half = detail::kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half)
        partial[threadIdx.x] = Op::template combine<A>(partial[threadIdx.x], partial[threadIdx.x + half]);
    }
    if (threadIdx.x == 0) out[result] = detail::convert<T>(Op::template finish<A>(partial[0], plan.reduced.count));
    __syncthreads();
  }
}

template <class Op>
void reduce_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const auto& how = *static_cast<const ReduceAttributes*>(attributes);
  const ReductionPlan plan = make_plan(in[0].shape, reduced_axes("reduce", in[0].shape, how));
  if (plan.kept.count == 0) return;
  constexpr std::int64_t kMostBlocks = 65535;
  const auto blocks = static_cast<unsigned>(std::min(plan.kept.count, kMostBlocks));
  const cudaStream_t stream = detail::stream_of(context);
  visit_dtype(in[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool> && (Op::kIntegers || !std::is_integral_v<T>))
      fold<Op, T, reduction_t<T>><<<blocks, detail::kThreads, 0, stream>>>(plan, in[0].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting a reduction");
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

OpDef sum_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<Sum>); }
OpDef mean_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<Mean>); }
OpDef max_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<Max>); }
OpDef min_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<Min>); }
OpDef prod_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<Prod>); }
OpDef l1_norm_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<L1Norm>); }
OpDef l2_norm_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<L2Norm>); }
OpDef max_norm_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<MaxNorm>); }
OpDef prod_backward_on_cuda(OpDef op) { return std::move(op).cuda(prod_backward_cuda); }
OpDef lp_norm_on_cuda(OpDef op) { return op; }
OpDef logsumexp_on_cuda(OpDef op) { return op; }

}  // namespace paceline
