#pragma once
// A reduction of a row-major array as two nests of loops: over the kept axes and over the reduced ones. Neighbouring
// axes of one kind become one.

#include "reduce/reduce.h"

#include <paceline/detail/convert.h>
#include <paceline/host_device.h>

#include <vector>

namespace paceline {

// Plain data, so that CUDA kernels take it by value. Outermost first.
struct LoopNest {
  int ndim = 0;
  std::int64_t count = 1;  // product of the sizes
  std::int64_t sizes[Shape::kMaxDims];
  std::int64_t strides[Shape::kMaxDims];

  PACELINE_HOST_DEVICE std::int64_t offset(std::int64_t index) const {
    std::int64_t result = 0;
    for (int i = ndim - 1; i >= 0; --i) {
      result += (i == 0 ? index : index % sizes[i]) * strides[i];
      if (i > 0) index /= sizes[i];
    }
    return result;
  }
};

struct ReductionPlan {
  LoopNest kept, reduced;
};

// Which axes are reduced; throws InvalidArgument naming `name` for wrong or repeated ones.
std::vector<bool> reduced_axes(const char* name, const Shape& shape, const ReduceAttributes& attributes);

ReductionPlan make_plan(const Shape& shape, const std::vector<bool>& reduced);

// The gradient of product number i: of each element, the gradient times those before it times those after it.
template <class T>
PACELINE_HOST_DEVICE void products_of_others(const ReductionPlan& plan, std::int64_t i, const T* gradient, const T* x,
                                             T* dx) {
  using A = accumulator_t<T>;
  const std::int64_t start = plan.kept.offset(i);
  A before = A(1);
  for (std::int64_t r = 0; r < plan.reduced.count; ++r) {
    const std::int64_t at = start + plan.reduced.offset(r);
    dx[at] = detail::convert<T>(before);
    before *= static_cast<A>(x[at]);
  }
  A after = static_cast<A>(gradient[i]);
  for (std::int64_t r = plan.reduced.count - 1; r >= 0; --r) {
    const std::int64_t at = start + plan.reduced.offset(r);
    dx[at] = detail::convert<T>(static_cast<A>(dx[at]) * after);
    after *= static_cast<A>(x[at]);
  }
}

}  // namespace paceline
