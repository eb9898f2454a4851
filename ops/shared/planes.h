#pragma once
// Kernels that work plane by plane: on the places of one channel of one example of an array (n, channels, sizes...).

#include "shared/wide.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>

namespace paceline {

// Calls body(number) for each of `planes` planes of `places` elements, on the team.
template <class Body>
void for_each_plane(std::int64_t planes, std::int64_t places, const Body& body) {
  const std::int64_t smallest = std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, places));
  detail::parallel_ranges(planes, smallest, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

// Bytes of workspace for sum_into_planes().
inline std::size_t plane_workspace(DType dtype, const Shape& shape) {
  return is_half(dtype) ? static_cast<std::size_t>(shape.size()) * sizeof(float) : 0;
}

// Calls add(number, `from`'s plane, sums) for each plane, where the sums begin as zeros and become the plane of `to`.
// Those of float16 and bfloat16 are made in the workspace.
template <class Add>
void sum_into_planes(const Tensor& from, const Tensor& to, void* workspace, const Add& add) {
  const std::int64_t planes = to.shape[0] * to.shape[1];
  if (planes == 0) return;
  const std::int64_t given = from.size() / planes, places = to.size() / planes;
  visit_floating(from.dtype, "gradient", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    A* const all = static_cast<A*>(std::is_same_v<T, A> ? to.data : workspace);
    for_each_plane(planes, places, [&](std::int64_t i) {
      A* const sums = all + i * places;
      std::fill_n(sums, places, A(0));
      add(i, from.as<const T>() + i * given, sums);
      if constexpr (!std::is_same_v<T, A>)
        for (std::int64_t k = 0; k < places; ++k) to.as<T>()[i * places + k] = T(sums[k]);
    });
  });
}

}  // namespace paceline
