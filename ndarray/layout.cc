#include "storage.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/layout.h>

#include <algorithm>
#include <array>
#include <optional>

namespace paceline::detail {
namespace {

// Coordinates that a layout takes along each of `steps`, as [begin, end).
using Box = std::vector<std::pair<std::int64_t, std::int64_t>>;

// Distinct distances between elements of either layout, the largest first and 1 last, where each is a multiple of the
// next; else none.
std::vector<std::int64_t> common_steps(const Layout& a, const Layout& b) {
  std::vector<std::int64_t> steps{1};
  for (const Layout* layout : {&a, &b})
    for (int i = 0; i < layout->shape.ndim(); ++i)
      if (layout->shape[i] > 1 && layout->strides[i] > 0) steps.push_back(layout->strides[i]);
  std::ranges::sort(steps, std::greater());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  for (std::size_t i = 1; i < steps.size(); ++i)
    if (steps[i - 1] % steps[i] != 0) return {};
  return steps;
}

// None where the layout is no box of an array with these steps.
std::optional<Box> box_of(const Layout& layout, std::int64_t first, const std::vector<std::int64_t>& steps) {
  Box box;
  std::int64_t rest = layout.offset - first;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t begin = rest / steps[i];
    rest %= steps[i];
    std::int64_t count = 1;
    for (int axis = 0; axis < layout.shape.ndim(); ++axis) {
      if (layout.shape[axis] == 1 || layout.strides[axis] != steps[i]) continue;
      if (count > 1) return std::nullopt;
      count = layout.shape[axis];
    }
    if (i > 0 && begin + count > steps[i - 1] / steps[i]) return std::nullopt;
    box.emplace_back(begin, begin + count);
  }
  return box;
}

}  // namespace

Layout Layout::of(const NDArray& array) {
  return {ArrayBuilder::offset(array), array.shape(), array.strides(), array.dtype()};
}

std::int64_t Layout::end() const {
  if (shape.size() == 0) return offset;
  std::int64_t last = offset;
  for (int i = 0; i < shape.ndim(); ++i) last += (shape[i] - 1) * strides[i];
  return last + 1;
}

bool may_overlap(const Layout& a, const Layout& b) {
  const auto width_a = static_cast<std::int64_t>(size_of(a.dtype)),
             width_b = static_cast<std::int64_t>(size_of(b.dtype));
  if (a.offset == a.end() || b.offset == b.end()) return false;
  if (a.end() * width_a <= b.offset * width_b || b.end() * width_b <= a.offset * width_a) return false;
  if (width_a != width_b || a == b) return true;
  const std::vector<std::int64_t> steps = common_steps(a, b);
  if (steps.empty()) return true;
  const std::int64_t first = std::min(a.offset, b.offset);
  const auto box_a = box_of(a, first, steps), box_b = box_of(b, first, steps);
  if (!box_a || !box_b) return true;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if ((*box_a)[i].second <= (*box_b)[i].first || (*box_b)[i].second <= (*box_a)[i].first) return false;
  return true;
}

bool covers(const Layout& outer, const Layout& inner) {
  if (outer == inner || inner.shape.size() == 0) return true;
  return size_of(outer.dtype) == size_of(inner.dtype) && is_dense(outer.shape, outer.strides) &&
         outer.offset <= inner.offset && inner.end() <= outer.end();
}

bool repeats_elements(const NDArray& array) {
  for (int i = 0; i < array.ndim(); ++i)
    if (array.strides()[i] == 0 && array.shape()[i] > 1) return true;
  return false;
}

Layout hull(const Layout& a, const Layout& b) {
  if (size_of(a.dtype) == size_of(b.dtype)) {
    const std::int64_t begin = std::min(a.offset, b.offset);
    return {begin, {std::max(a.end(), b.end()) - begin}, {1}, a.dtype};
  }
  const auto bytes = [](const Layout& layout) {
    const auto width = static_cast<std::int64_t>(size_of(layout.dtype));
    return Layout{layout.offset * width, {(layout.end() - layout.offset) * width}, {1}, DType::kUint8};
  };
  return hull(bytes(a), bytes(b));
}

Layout whole_block(const NDArray& array) {
  const auto count = static_cast<std::int64_t>(ArrayBuilder::storage(array)->bytes() / size_of(array.dtype()));
  return {0, {count}, {1}, array.dtype()};
}

std::uint64_t writes_to(const NDArray& array) { return ArrayBuilder::storage(array)->writes(); }

bool written_since(const NDArray& array, std::uint64_t count) {
  const Layout layout = Layout::of(array);
  return ArrayBuilder::storage(array)->written_between(count, writes_to(array), {&layout});
}

bool written_since(const NDArray& array, std::uint64_t count, const Layout& within) {
  const Layout layout = Layout::of(array);
  return ArrayBuilder::storage(array)->written_between(count, writes_to(array), {&layout, &within});
}

bool written_before_the_latest(const NDArray& array, std::uint64_t count, const Layout& layout) {
  return ArrayBuilder::storage(array)->written_between(count, writes_to(array) - 1, {&layout});
}

}  // namespace paceline::detail
