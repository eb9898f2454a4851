#pragma once
// Lists that are used again and again for their memory.

#include <cstddef>
#include <vector>

namespace paceline {

// Empties the list for `size` elements.
template <class T>
void begin_scratch(std::vector<T>& list, std::size_t size) {
  list.clear();
  list.reserve(size);
}

// The memory of many elements is not kept.
template <class T>
void end_scratch(std::vector<T>& list) {
  constexpr std::size_t kFew = 64;
  if (list.capacity() > kFew) std::vector<T>().swap(list);
}

}  // namespace paceline
