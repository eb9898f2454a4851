#pragma once
// Operators along an axis take an array without axes as one of a single element, as PyTorch does.

#include "reshape/reshape.h"

#include <paceline/op.h>

namespace paceline {

// f(x), where a 0-d `x` goes in with the shape (1) and each array of the result comes out 0-d. `axis` may be 0 or -1
// then; throws InvalidArgument "[name] ..." for others.
template <class F>
auto with_an_axis(const char* name, const NDArray& x, int axis, const F& f) {
  if (x.is_none() || x.ndim() > 0) return f(x);
  normalize_axis(axis, 1, name);
  auto result = f(reshape(x, {1}));
  if constexpr (std::is_same_v<decltype(result), NDArray>) {
    return reshape(result, {});
  } else {
    for (NDArray& array : result) array = reshape(array, {});
    return result;
  }
}

}  // namespace paceline
