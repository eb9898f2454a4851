#pragma once
// Pooling over the one to three spatial axes of x (n, channels, sizes...). Floating types. Functions throw
// InvalidArgument "[max_pool] ..." or "[average_pool] ...".

#include <paceline/op.h>

namespace paceline {

// Which windows there are: along each axis (size + 2 padding - kernel) / stride + 1. A Shape has a number for every
// spatial axis, or none.
struct PoolAttributes {
  Shape kernel = {};              // size of a window
  Shape stride = {};              // none: as the kernel, so that windows do not overlap
  Shape padding = {};             // none: 0; less than the kernel
  bool ceil_mode = false;         // rounds the number of windows up; none begins in the padding at the end
  bool count_include_pad = true;  // padded places count in an average; places beyond the padding never do
  // Not none: windows of equal parts, and the rest is ignored. Window i of n along an axis reaches from floor(i size /
  // n) to ceil((i + 1) size / n).
  Shape result = {};
};

// The largest element of each window: NaN where there is one. The first of equal elements gets the gradient.
NDArray max_pool(const NDArray& x, const PoolAttributes& attributes);
// The mean of each window.
NDArray average_pool(const NDArray& x, const PoolAttributes& attributes);
// Pooling with windows of equal parts: gives (n, channels, result...).
NDArray adaptive_max_pool(const NDArray& x, const Shape& result);
NDArray adaptive_average_pool(const NDArray& x, const Shape& result);
// Pooling with one window: gives (n, channels, 1...).
NDArray global_max_pool(const NDArray& x);
NDArray global_average_pool(const NDArray& x);

}  // namespace paceline
