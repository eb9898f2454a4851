#pragma once
// How reductions are cut, on the CPU and on CUDA: blocks of a fixed size, whose sums are added in a fixed order, so
// that the result does not depend on how many threads there are.

#include "kernels/functors.h"

namespace paceline::detail {

inline constexpr std::int64_t kReductionBlock = 16384;

inline std::int64_t reduction_blocks(std::int64_t size) { return (size + kReductionBlock - 1) / kReductionBlock; }

template <class Term, class T>
using term_sum_t = std::conditional_t<std::is_same_v<Term, Square>, double, sum_t<T>>;

}  // namespace paceline::detail
