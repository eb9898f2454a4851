#pragma once
// A tile: a run of neighbouring elements of one slice that stays in the nearest cache while staleness correction and
// optimizer pass over it, so that a chain of rules costs one pass over memory.

#include <cstdint>

namespace paceline {

template <class T>
struct Tile {
  static constexpr std::int64_t kElements = 1024;  // at most

  std::int64_t count = 0;
  T* gradient = nullptr;  // scratch: rules may change it
  T* weight = nullptr;
  const T* before = nullptr;  // the weights, where `weight` has yet to be written: see Optimizer::in_one_pass()
  const T* pulled = nullptr;  // the weights this worker computed the gradient from; null unless a rule asked for them
  T* const* state = nullptr;  // the rule's own state arrays, at this tile
};

}  // namespace paceline
