#pragma once
// Tiles, on which optimizers and staleness policies work.

#include <cstdint>

namespace paceline {

// A run of neighbouring elements of a slice. It stays in the first-level cache while the staleness policy and the
// optimizer work on it, so a chain of rules costs one pass over memory. Each pointer leads to `count` elements.
template <class T>
struct Tile {
  static constexpr std::int64_t kElements = 1024;  // largest number of elements, except in a DeviceUpdate

  std::int64_t count = 0;     // number of elements
  T* gradient = nullptr;      // rules may change it
  T* weight = nullptr;        // read and written
  const T* before = nullptr;  // not null: the old weights, and `weight` is only written (Optimizer::in_one_pass())
  const T* pulled = nullptr;  // the weights that the gradient was computed from; null unless a rule needs them
  T* const* state = nullptr;  // for each of the rule's state arrays: this tile of the array
};

}  // namespace paceline
