#pragma once
// Tiles, on which optimizers and staleness policies work.

#include <cstdint>

namespace paceline {

// A run of neighbouring elements of a slice. It stays in the nearest cache while the staleness policy and the optimizer
// work on it, so that a chain of rules costs one pass over memory. Pointers are to `count` elements each.
template <class T>
struct Tile {
  static constexpr std::int64_t kElements = 1024;  // the most elements

  std::int64_t count = 0;     // of the elements
  T* gradient = nullptr;      // rules may change it
  T* weight = nullptr;        // read and written
  const T* before = nullptr;  // the weights, where `weight` is only written: see Optimizer::in_one_pass(); else null
  const T* pulled = nullptr;  // the weights that the gradient was computed from; null unless a rule asked for them
  T* const* state = nullptr;  // the rule's own state arrays, at this tile
};

}  // namespace paceline
