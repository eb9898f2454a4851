#pragma once
// Lists that are reused to avoid allocations.

#include <cstddef>
#include <vector>

namespace paceline {

// Empties the list, and reserves memory for `size` elements.
template <class T>
void begin_scratch(std::vector<T>& list, std::size_t size) {
  list.clear();
  list.reserve(size);
}

// Releases the memory of a large list.
template <class T>
void end_scratch(std::vector<T>& list) {
  constexpr std::size_t kFew = 64;
  if (list.capacity() > kFew) std::vector<T>().swap(list);
}

}  // namespace paceline
