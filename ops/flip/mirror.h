#pragma once
// The argument of flip() as a tensor whose strides run backwards, for host and device.

#include "flip/flip.h"
#include "reduce/plan.h"

namespace paceline {

struct Same {
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x) const {
    return x;
  }
};

inline Tensor mirrored(Tensor x, const void* attributes) {
  const auto& axes = static_cast<const FlipAttributes*>(attributes)->axes;
  const std::vector<bool> flipped = reduced_axes("flip", x.shape, ReduceAttributes{axes});
  std::int64_t offset = 0;
  for (int i = 0; i < x.shape.ndim(); ++i) {
    if (!flipped[static_cast<std::size_t>(i)]) continue;
    offset += x.strides[i] * (x.shape[i] - 1);
    x.strides[i] = -x.strides[i];
  }
  if (x.size() > 0) x.data = x.as<char>() + offset * static_cast<std::int64_t>(size_of(x.dtype));
  return x;
}

}  // namespace paceline
