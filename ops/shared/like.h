#pragma once
// New arrays that lie in memory as another one does.

#include <paceline/ndarray.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace paceline {

// Dense, its axes in the order in which x has them in memory, but for the last `fixed`, which stay the last.
inline NDArray in_order_of(const NDArray& x, const Shape& shape, DType dtype, int fixed = 0) {
  std::vector<int> order(static_cast<std::size_t>(x.ndim())), places(order.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end() - fixed, [&](int a, int b) { return x.strides()[a] > x.strides()[b]; });
  Shape dense;
  for (std::size_t i = 0; i < order.size(); ++i) {
    dense.push_back(shape[order[i]]);
    places[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  }
  return NDArray(dense, dtype, x.device(), x.engine()).permute(places);
}

}  // namespace paceline
