#pragma once
// The pairs of elements that gather and scatter_add visit on CUDA devices. Element `place` of the positions points to
// element `element` of a row-major array.

#include <paceline/host_device.h>
#include <paceline/shape.h>

namespace paceline {

// Plain data, so that CUDA kernels take it by value.
struct IndexPairs {
  int ndim = 0, axis = 0;
  std::int64_t sizes[Shape::kMaxDims] = {};    // of the positions
  std::int64_t strides[Shape::kMaxDims] = {};  // of the array

  IndexPairs(const Shape& positions, const Shape& array, int along) : ndim(positions.ndim()), axis(along) {
    const Strides dense = row_major(array);
    for (int d = 0; d < ndim; ++d) {
      sizes[d] = positions[d];
      strides[d] = dense[d];
    }
  }
  // The number of lines of positions along the axis. All positions of a line point into the same line of the array.
  PACELINE_HOST_DEVICE std::int64_t lines() const {
    std::int64_t count = 1;
    for (int d = 0; d < ndim; ++d) count *= d == axis ? 1 : sizes[d];
    return count;
  }
  // The distance between neighbours in a line of positions, in elements.
  PACELINE_HOST_DEVICE std::int64_t step() const {
    std::int64_t result = 1;
    for (int d = axis + 1; d < ndim; ++d) result *= sizes[d];
    return result;
  }
  // Sets `place` to the first place of a line of positions. Sets `element` to where a position of value 0 in it points.
  PACELINE_HOST_DEVICE void begin(std::int64_t line, std::int64_t& place, std::int64_t& element) const {
    place = element = 0;
    std::int64_t width = 1;
    for (int d = ndim - 1; d >= 0; --d) {
      if (d != axis) {
        place += line % sizes[d] * width;
        element += line % sizes[d] * strides[d];
        line /= sizes[d];
      }
      width *= sizes[d];
    }
  }
};

}  // namespace paceline
