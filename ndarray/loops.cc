#include <paceline/detail/loops.h>

#include <array>
#include <cassert>
#include <cstdlib>

namespace paceline::detail {

Loops make_loops(const Shape& shape, std::span<const Strides> strides) {
  assert(!strides.empty() && strides.size() <= kMaxOperands);
  const int operands = static_cast<int>(strides.size());
  // Sorting by insertion: eight dimensions at most, usually in order already, and no allocation.
  std::array<int, Shape::kMaxDims> order{};
  std::size_t count = 0;
  for (int d = 0; d < shape.ndim(); ++d) {
    if (shape[d] == 1) continue;
    std::size_t at = count++;
    for (; at > 0 && std::llabs(strides[0][order[at - 1]]) < std::llabs(strides[0][d]); --at) order[at] = order[at - 1];
    order[at] = d;
  }

  Loops loops{};
  loops.total = shape.size();
  for (std::size_t i = 0; i < count; ++i) {
    const int d = order[i];
    const int outer = loops.ndim - 1;
    bool one_run = loops.ndim > 0;
    for (int n = 0; n < operands && one_run; ++n)
      one_run = loops.strides[n][outer] == strides[static_cast<std::size_t>(n)][d] * shape[d];
    const int to = one_run ? outer : loops.ndim++;
    loops.sizes[to] = one_run ? loops.sizes[to] * shape[d] : shape[d];
    for (int n = 0; n < operands; ++n) loops.strides[n][to] = strides[static_cast<std::size_t>(n)][d];
  }
  if (loops.ndim == 0) {
    loops.ndim = 1;
    loops.sizes[0] = 1;
    for (int n = 0; n < operands; ++n) loops.strides[n][0] = 1;
  }
  return loops;
}

}  // namespace paceline::detail
