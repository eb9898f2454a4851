#include <paceline/detail/elementwise.h>

#include <cassert>

namespace paceline::detail {
namespace {

// The loops around the innermost one: they count rows.
Loops around(const Loops& loops) {
  Loops rows = loops;
  if (loops.ndim == 1) {
    rows.sizes[0] = 1;
    for (auto& strides : rows.strides) strides[0] = 0;
  } else {
    --rows.ndim;
  }
  rows.total = loops.total / loops.sizes[loops.ndim - 1];
  return rows;
}

template <int N>
void for_each_block_of(const Loops& loops, char* const* operands, const std::size_t* item_sizes, BlockFunction block,
                       const void* functor) {
  const Loops rows = around(loops);
  const std::int64_t length = loops.sizes[loops.ndim - 1];
  std::int64_t steps[N], row_steps[N];
  for (int n = 0; n < N; ++n) {
    steps[n] = loops.strides[n][loops.ndim - 1];
    row_steps[n] = rows.strides[n][rows.ndim - 1];
  }
  // `count` items of each of the rows, behind the first `skipped`.
  const auto visit = [&](std::int64_t first, std::int64_t last, std::int64_t skipped, std::int64_t count) {
    walk<N>(rows, first, last, [&](const std::array<std::int64_t, N>& offsets, std::int64_t height) {
      char* at[N];
      for (int n = 0; n < N; ++n)
        at[n] = operands[n] + (offsets[n] + skipped * steps[n]) * static_cast<std::int64_t>(item_sizes[n]);
      block(functor, {height, count, row_steps, steps}, at);
    });
  };
  parallel_ranges(loops.total, kElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t row = begin / length;
    if (const std::int64_t skipped = begin % length; skipped > 0) {
      const std::int64_t count = std::min(length - skipped, end - begin);
      visit(row, row + 1, skipped, count);
      begin += count;
      ++row;
    }
    const std::int64_t whole = (end - begin) / length;
    visit(row, row + whole, 0, length);
    if (const std::int64_t rest = (end - begin) % length; rest > 0) visit(row + whole, row + whole + 1, 0, rest);
  });
}

}  // namespace

void for_each_block(const Loops& loops, std::span<char* const> operands, std::span<const std::size_t> item_sizes,
                    BlockFunction block, const void* functor) {
  static_assert(kMaxOperands == 6);
  constexpr decltype(&for_each_block_of<1>) kByOperands[] = {for_each_block_of<1>, for_each_block_of<2>,
                                                             for_each_block_of<3>, for_each_block_of<4>,
                                                             for_each_block_of<5>, for_each_block_of<6>};
  assert(!operands.empty() && operands.size() <= kMaxOperands && item_sizes.size() == operands.size());
  if (loops.total == 0) return;
  kByOperands[operands.size() - 1](loops, operands.data(), item_sizes.data(), block, functor);
}

}  // namespace paceline::detail
