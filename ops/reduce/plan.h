#pragma once
// A reduction of a row-major array as two nests of loops: over the kept axes and over the reduced ones. Neighbouring
// axes of one kind become one.

#include "reduce/reduce.h"

#include <paceline/host_device.h>

#include <vector>

namespace paceline {

// Plain data, so that CUDA kernels take it by value. Outermost first.
struct LoopNest {
  int ndim = 0;
  std::int64_t count = 1;  // product of the sizes
  std::int64_t sizes[Shape::kMaxDims];
  std::int64_t strides[Shape::kMaxDims];

  HOST_DEVICE std::int64_t offset(std::int64_t index) const {
    std::int64_t result = 0;
    for (int i = ndim - 1; i >= 0; --i) {
      result += index % sizes[i] * strides[i];
      index /= sizes[i];
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

}  // namespace paceline
