#pragma once
// Pooling over the last two axes of x (n, channels, height, width). Floating types. Windows that stick out by more than
// the padding are left out. Throws InvalidArgument "[max_pool2d] ...".

#include <paceline/op.h>

#include <array>

namespace paceline {

struct Pool2dAttributes {
  std::array<std::int64_t, 2> kernel{2, 2};   // each pair: along height, along width
  std::array<std::int64_t, 2> stride{0, 0};   // 0: as the kernel, windows do not overlap
  std::array<std::int64_t, 2> padding{0, 0};  // less than the kernel
  bool count_include_pad = true;              // do padded places count in an average?
  bool global = false;                        // one window over the whole plane; the pairs are ignored
};

NDArray max_pool2d(const NDArray& x, const Pool2dAttributes& attributes = {});  // NaN propagates; first of equals
NDArray average_pool2d(const NDArray& x, const Pool2dAttributes& attributes = {});
NDArray global_max_pool2d(const NDArray& x);      // (n, channels, 1, 1)
NDArray global_average_pool2d(const NDArray& x);  // (n, channels, 1, 1)

}  // namespace paceline
