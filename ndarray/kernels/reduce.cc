#include "kernels/reduce.h"
#include "kernels/cuda_kernels.h"

#include <paceline/detail/elementwise.h>

namespace paceline {
namespace detail {
namespace {

// Several sums at once, because each addition takes longer than one can be started.
template <class Term, class Sum, class T>
wrapping_t<Sum> sum_row(const T* row, std::int64_t step, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  wrapping_t<Sum> lanes[kLanes] = {};
  std::int64_t i = 0;
  if (step == 1) {
    for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
      for (std::int64_t lane = 0; lane < kLanes; ++lane)
        lanes[lane] += static_cast<wrapping_t<Sum>>(Term::template of<Sum>(row[i + lane]));
    }
  }
  for (; i < count; ++i) lanes[i % kLanes] += static_cast<wrapping_t<Sum>>(Term::template of<Sum>(row[i * step]));
  wrapping_t<Sum> sum = 0;
  for (const auto lane : lanes) sum += lane;
  return sum;
}

template <class Term>
void sum_cpu(const KernelContext& context, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
             const void*) {
  const Tensor& x = inputs[0];
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Sum = term_sum_t<Term, T>;
    using Wrapping = wrapping_t<Sum>;
    Wrapping* const partial = static_cast<Wrapping*>(context.workspace);
    const std::array<Strides, 1> strides{x.strides};
    const Loops loops = make_loops(x.shape, strides);
    const std::int64_t step = loops.strides[0][loops.ndim - 1];
    const auto sum_blocks = [&](std::int64_t first_block, std::int64_t last_block) {
      for (std::int64_t block = first_block; block < last_block; ++block) {
        Wrapping sum = 0;
        walk<1>(loops, block * kReductionBlock, std::min(loops.total, (block + 1) * kReductionBlock),
                [&](const std::array<std::int64_t, 1>& offsets, std::int64_t count) {
                  sum += sum_row<Term, Sum>(x.as<const T>() + offsets[0], step, count);
                });
        partial[block] = sum;
      }
    };
    const std::int64_t blocks = reduction_blocks(loops.total);
    if (loops.total <= 4 * kReductionBlock) {
      sum_blocks(0, blocks);
    } else {
#pragma omp parallel for num_threads(team_size()) schedule(static)
      for (std::int64_t block = 0; block < blocks; ++block) sum_blocks(block, block + 1);
    }
    Wrapping total = 0;
    for (std::int64_t block = 0; block < blocks; ++block) total += partial[block];
    visit_dtype(outputs[0].dtype, [&](auto out_tag) {
      using Out = typename decltype(out_tag)::type;
      *outputs[0].as<Out>() = convert<Out>(static_cast<Sum>(total));
    });
  });
}

void reduce(const Kernel& kernel, const NDArray& x, const NDArray& out) {
  require(out.size() == 1, "[", kernel.name, "] needs an output of one element, got ", out.describe());
  const NDArray inputs[] = {x};
  const NDArray outputs[] = {out};
  launch(kernel, inputs, outputs, nullptr,
         {.workspace_bytes = static_cast<std::size_t>(reduction_blocks(x.size()) + 1) * sizeof(double)});
}

}  // namespace
}  // namespace detail

namespace kernels {

void reduce_sum(const NDArray& x, const NDArray& out) {
  detail::reduce({"reduce_sum", detail::sum_cpu<detail::Identity>, detail::reduce_sum_cuda()}, x, out);
}

void sum_of_squares(const NDArray& x, const NDArray& out) {
  require(out.dtype() == DType::kFloat64, "[sum_of_squares] needs a float64 output, got ", out.describe());
  detail::reduce({"sum_of_squares", detail::sum_cpu<detail::Square>, detail::sum_of_squares_cuda()}, x, out);
}

}  // namespace kernels
}  // namespace paceline
