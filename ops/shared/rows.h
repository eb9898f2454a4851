#pragma once
// An array seen as (outer, size, inner) around one axis.

#include <paceline/kernel.h>

namespace paceline {

struct AxisView {
  std::int64_t outer = 1;
  std::int64_t size = 1;
  std::int64_t inner = 1;
};

inline AxisView around_axis(const Shape& shape, int axis) {
  AxisView view;
  for (int i = 0; i < shape.ndim(); ++i) (i < axis ? view.outer : i == axis ? view.size : view.inner) *= shape[i];
  return view;
}

}  // namespace paceline
