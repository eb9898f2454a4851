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
      total = Op::template combine<A>(total, static_cast<A>(detail::load(from[plan.reduced.offset(i)])));
    partial[threadIdx.x] = total;
    for (int half = detail::kThreads / 2; half > 0; half /= 2) {
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
    if constexpr (!std::is_same_v<T, bool> && (!std::is_same_v<Op, Mean> || !std::is_integral_v<T>))
      fold<Op, T, reduction_t<T>><<<blocks, detail::kThreads, 0, stream>>>(plan, in[0].as<const T>(), out[0].as<T>());
  });
  detail::check_cuda(cudaGetLastError(), "starting a reduction");
}

}  // namespace

OpDef sum_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<Sum>); }
OpDef mean_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<Mean>); }
OpDef max_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<Max>); }
OpDef min_on_cuda(OpDef op) { return std::move(op).cuda(reduce_cuda<Min>); }

}  // namespace paceline
