#pragma once
// The order in which sort and top_k put the elements of a line, for host and device.

#include "sort/sort.h"

#include <paceline/host_device.h>

namespace paceline {

// What both operators do: the first `count` elements in order along `axis`; negative: all.
struct Order {
  int axis;
  bool descending;
  std::int64_t count;
};

// How many of a line of `size` elements.
inline std::int64_t kept_of(const Order& order, std::int64_t size) { return order.count < 0 ? size : order.count; }

inline Order order_of(const SortAttributes& attributes) { return {attributes.axis, attributes.descending, -1}; }
inline Order order_of(const TopKAttributes& attributes) { return {attributes.axis, attributes.largest, attributes.k}; }

// NaN counts as the largest.
template <class A>
PACELINE_HOST_DEVICE bool is_before(A a, A b) {
  return a < b || (b != b && a == a);
}

// Does element i, with the value a, come before element j with the value b? Of equals, the first.
template <class A>
PACELINE_HOST_DEVICE bool is_first(bool descending, A a, std::int64_t i, A b, std::int64_t j) {
  if (descending ? is_before(b, a) : is_before(a, b)) return true;
  return !(descending ? is_before(a, b) : is_before(b, a)) && i < j;
}

// Where the element in place `at` of a line goes when runs of `width` elements, each in order, are merged by twos.
// first(i, j): does the element in place i come before that in place j? Of a line of `size` places.
template <class First>
PACELINE_HOST_DEVICE std::int64_t merged_place(std::int64_t at, std::int64_t width, std::int64_t size,
                                               const First& first) {
  const std::int64_t run = at / width, begin = run / 2 * 2 * width;
  const bool is_left = run % 2 == 0;
  const std::int64_t other = is_left ? begin + width : begin;  // the run to merge with
  std::int64_t low = other < size ? other : size;
  std::int64_t high = low + width < size ? low + width : size;
  const std::int64_t other_begin = low;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (first(middle, at))
      low = middle + 1;
    else
      high = middle;
  }
  const std::int64_t own = at - (is_left ? begin : begin + width);
  return begin + own + (low - other_begin);
}

}  // namespace paceline
