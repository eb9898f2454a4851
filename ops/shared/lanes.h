#pragma once
// Sums and other folds over a row with a fixed number of independent partial results, so that the loop becomes vector
// code and the result depends on the length only.

#include <algorithm>
#include <cstdint>

namespace paceline {

// Folds value(0) ... value(count - 1) with combine(a, b), starting from `start`.
template <class A, class Value, class Combine>
[[gnu::always_inline]] inline A fold_lanes(std::int64_t count, A start, const Value& value, const Combine& combine) {
  constexpr std::int64_t kLanes = 16;
  std::int64_t i = 0;
  if (count >= kLanes) {
    A lanes[kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = start;
    for (; i + kLanes <= count; i += kLanes)
      for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = combine(lanes[lane], value(i + lane));
    for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
      for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] = combine(lanes[lane], lanes[lane + width]);
    start = lanes[0];
  }
  for (; i < count; ++i) start = combine(start, value(i));
  return start;
}

inline constexpr std::int64_t kLongSum = 16384;

// In pieces, which are added in float64: A alone would lose their digits.
template <class A, class Value>
[[gnu::noinline]] A sum_long(std::int64_t count, const Value& value) {
  double total = 0;
  for (std::int64_t first = 0; first < count; first += kLongSum)
    total += static_cast<double>(fold_lanes<A>(
        std::min(kLongSum, count - first), A(0), [&](std::int64_t i) { return value(first + i); },
        [](A a, A b) { return a + b; }));
  return static_cast<A>(total);
}

template <class A, class Value>
[[gnu::always_inline]] inline A sum_lanes(std::int64_t count, const Value& value) {
  if (count > kLongSum) return sum_long<A>(count, value);
  return fold_lanes<A>(count, A(0), value, [](A a, A b) { return a + b; });
}

}  // namespace paceline
