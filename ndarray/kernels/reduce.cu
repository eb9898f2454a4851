#include "kernels/cuda_kernels.h"
#include "kernels/functors.h"
#include "kernels/reduce.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline::detail {
namespace {

// Adds the threads' sums pairwise, always in the same order; the first thread has the result.
template <class Sum>
__device__ Sum sum_of_block(Sum mine) {
  __shared__ Sum sums[kThreads];
  sums[threadIdx.x] = mine;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  return sums[0];
}

template <class Term, class Sum, class Wide, class T>
__global__ void sum_blocks(const Loops loops, const T* x, Wide* partial) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * kReductionBlock;
  const std::int64_t end = min(loops.total, begin + kReductionBlock);
  Wide sum = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const Offsets<1> offsets(loops, i);
    sum += static_cast<Wide>(Term::template of<Sum>(x[offsets.at[0]]));
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class Sum, class Wide, class Out>
__global__ void sum_partial(const Wide* partial, std::int64_t count, Out* out) {
  Wide sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += partial[i];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *out = convert<Out>(static_cast<Sum>(sum));
}

template <class Term>
void reduce(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
            const void*) {
  const Tensor& x = inputs[0];
  const std::array<Strides, 1> strides{x.strides};
  const Loops loops = make_loops(x.shape, strides);
  const std::int64_t blocks = reduction_blocks(loops.total);
  const cudaStream_t stream = stream_of(context);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = term_sum_t<Term, T>;
    using Wide = wrapping_t<Sum>;
    Wide* const partial = static_cast<Wide*>(context.workspace);
    if (blocks > 0)
      sum_blocks<Term, Sum><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(loops, x.as<const T>(), partial);
    visit_dtype(outputs[0].dtype, [&](auto out_tag) {
      using Out = typename decltype(out_tag)::type;
      sum_partial<Sum><<<1, kThreads, 0, stream>>>(partial, blocks, outputs[0].as<Out>());
    });
  });
  check_cuda(cudaGetLastError(), "starting a reduction");
}

}  // namespace

KernelFunction reduce_sum_cuda() { return reduce<Identity>; }
KernelFunction sum_of_squares_cuda() { return reduce<Square>; }

}  // namespace paceline::detail
