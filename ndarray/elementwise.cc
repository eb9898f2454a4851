#include <paceline/detail/elementwise.h>

#include <cassert>

namespace paceline::detail {
namespace {

template <int N>
void for_each_row_of(const Loops& loops, char* const* operands, const std::size_t* item_sizes, RowFunction row,
                     const void* functor) {
  std::int64_t steps[N];
  for (int n = 0; n < N; ++n) steps[n] = loops.strides[n][loops.ndim - 1];
  parallel_ranges(loops.total, kElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
    walk<N>(loops, begin, end, [&](const std::array<std::int64_t, N>& offsets, std::int64_t count) {
      char* at[N];
      for (int n = 0; n < N; ++n) at[n] = operands[n] + offsets[n] * static_cast<std::int64_t>(item_sizes[n]);
      row(functor, count, steps, at);
    });
  });
}

}  // namespace

void for_each_row(const Loops& loops, std::span<char* const> operands, std::span<const std::size_t> item_sizes,
                  RowFunction row, const void* functor) {
  static_assert(kMaxOperands == 6);
  constexpr decltype(&for_each_row_of<1>) kByOperands[] = {for_each_row_of<1>, for_each_row_of<2>, for_each_row_of<3>,
                                                           for_each_row_of<4>, for_each_row_of<5>, for_each_row_of<6>};
  assert(!operands.empty() && operands.size() <= kMaxOperands && item_sizes.size() == operands.size());
  kByOperands[operands.size() - 1](loops, operands.data(), item_sizes.data(), row, functor);
}

}  // namespace paceline::detail
