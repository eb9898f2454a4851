#pragma once
// Comparison of arrays, bit for bit.

#include <paceline/ndarray.h>

#include "fuzz.h"

namespace paceline::fuzz {

inline bool same(const NDArray& a, const NDArray& b) {
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  a.wait();
  b.wait();
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.bytes() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

inline bool same(const NamedArrays& a, const NamedArrays& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same(x.second, y.second); });
}

}  // namespace paceline::fuzz
