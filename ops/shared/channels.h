#pragma once
// Arrays (n, channels, sizes...) whose channels are the last axis in memory, as the matrix units of GPUs want them.
// Their shape is that of others; their strides tell.

#include <paceline/host_device.h>
#include <paceline/kernel.h>
#include <paceline/ndarray.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

namespace paceline {

inline bool may_have_channels_last(const Shape& shape) { return shape.ndim() >= 3; }

// Axes in the order in which they lie, and back.
inline std::vector<int> to_channels_last(int ndim) {
  std::vector<int> order(static_cast<std::size_t>(ndim));
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  return order;
}
inline std::vector<int> from_channels_last(int ndim) {
  std::vector<int> order(static_cast<std::size_t>(ndim));
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin() + 1, order.end() - 1, order.end());
  return order;
}

// And not row-major, as an array of one channel may be as well.
inline bool is_channels_last(const NDArray& x) {
  return !x.is_none() && may_have_channels_last(x.shape()) && !x.is_contiguous() &&
         x.permute(to_channels_last(x.ndim())).is_contiguous();
}

inline NDArray new_channels_last(const Shape& shape, DType dtype, const NDArray& like) {
  Shape lying;
  for (const int axis : to_channels_last(shape.ndim())) lying.push_back(shape[axis]);
  return NDArray(lying, dtype, like.device(), like.engine()).permute(from_channels_last(shape.ndim()));
}

// Itself where it lies so.
inline NDArray as_channels_last(const NDArray& x) {
  return x.permute(to_channels_last(x.ndim())).contiguous().permute(from_channels_last(x.ndim()));
}

// Does a call with these inputs work on arrays whose channels are last? For operators that take both (OpDef).
inline bool have_channels_last(std::span<const NDArray> inputs) {
  return !inputs.empty() && !inputs[0].is_none() && inputs[0].device().kind == DeviceKind::kCuda &&
         std::any_of(inputs.begin(), inputs.end(), is_channels_last);
}
// The same of what a kernel gets.
inline bool have_channels_last(std::span<const Tensor> inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const Tensor& x) {
    if (!may_have_channels_last(x.shape) || x.size() == 0) return false;
    const Strides row_major_strides = row_major(x.shape);
    for (int i = 0; i < x.shape.ndim(); ++i)
      if (x.shape[i] != 1 && x.strides[i] != row_major_strides[i]) return true;
    return false;
  });
}

// Where a kernel finds the elements of such an array: `places` along all axes behind the channels.
struct ChannelOrder {
  std::int64_t channels, places;
  bool last;

  PACELINE_HOST_DEVICE std::int64_t at(std::int64_t example, std::int64_t channel, std::int64_t place) const {
    return example * channels * places + (last ? place * channels + channel : channel * places + place);
  }
  // Of element i in memory.
  PACELINE_HOST_DEVICE std::int64_t example(std::int64_t i) const { return i / (channels * places); }
  PACELINE_HOST_DEVICE std::int64_t channel(std::int64_t i) const {
    return last ? i % channels : i / places % channels;
  }
  PACELINE_HOST_DEVICE std::int64_t place(std::int64_t i) const { return last ? i / channels % places : i % places; }
};

}  // namespace paceline
