#pragma once
// An array seen as (outer, size, inner) around one axis, and sizes made from sizes.

#include <paceline/host_device.h>
#include <paceline/kernel.h>

namespace paceline {

struct AxisView {
  std::int64_t outer = 1;
  std::int64_t size = 1;
  std::int64_t inner = 1;

  // The lines of elements along the axis, `inner` apart, and where one of them begins.
  PACELINE_HOST_DEVICE std::int64_t lines() const { return outer * inner; }
  PACELINE_HOST_DEVICE std::int64_t first(std::int64_t line) const {
    return line / inner * size * inner + line % inner;
  }
};

inline AxisView around_axis(const Shape& shape, int axis) {
  AxisView view;
  for (int i = 0; i < shape.ndim(); ++i) (i < axis ? view.outer : i == axis ? view.size : view.inner) *= shape[i];
  return view;
}

// Throw InvalidArgument naming `name` where the result is 2^63 or more.
inline std::int64_t checked_product(const char* name, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  require(!__builtin_mul_overflow(a, b, &result), "[", name, "] a size of ", a, " times ", b, " is too large");
  return result;
}
inline std::int64_t checked_sum(const char* name, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  require(!__builtin_add_overflow(a, b, &result), "[", name, "] a size of ", a, " and ", b, " is too large");
  return result;
}

}  // namespace paceline
