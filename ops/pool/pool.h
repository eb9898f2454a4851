#pragma once
// Pooling over the spatial axes, one to three, of x (n, channels, sizes...). Floating types. Throw InvalidArgument
// "[max_pool] ..." and "[average_pool] ...".

#include <paceline/op.h>

namespace paceline {

// Along each axis there are (size + 2 padding - kernel) / stride + 1 windows.
struct PoolAttributes {
  Shape kernel = {};              // each: one number for every spatial axis
  Shape stride = {};              // none: as the kernel, windows do not overlap
  Shape padding = {};             // none: 0; less than the kernel
  bool ceil_mode = false;         // round the number of windows up; none begins in the padding at the end
  bool count_include_pad = true;  // do padded places count in an average? What sticks out beyond them does not
  Shape result = {};              // where given, windows of equal parts instead: number i of n along an axis reaches
                                  // from floor(i size / n) to ceil((i + 1) size / n); the rest is ignored
};

NDArray max_pool(const NDArray& x, const PoolAttributes& attributes);  // NaN propagates; first of equals
NDArray average_pool(const NDArray& x, const PoolAttributes& attributes);
// With windows of equal parts, (n, channels, result...).
NDArray adaptive_max_pool(const NDArray& x, const Shape& result);
NDArray adaptive_average_pool(const NDArray& x, const Shape& result);
// One window: (n, channels, 1...).
NDArray global_max_pool(const NDArray& x);
NDArray global_average_pool(const NDArray& x);

}  // namespace paceline
