#pragma once
// Prefetches memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace paceline {

enum class Cache { kFirst, kSecond };

// Prefetches at most the first eight cache lines of `bytes` bytes from `at` on. It is always inlined: gcc drops the
// call of a function that only prefetches, because it seems to do nothing.
template <Cache kCache>
[[gnu::always_inline]] inline void prefetch_lines(const std::byte* at, std::size_t bytes) {
  constexpr std::size_t kLine = 64, kMost = 8 * kLine;
  constexpr int kLocality = kCache == Cache::kFirst ? 3 : 2;
  const std::byte* const end = at + std::min(bytes, kMost);
  for (at -= reinterpret_cast<std::uintptr_t>(at) % kLine; at < end; at += kLine) __builtin_prefetch(at, 0, kLocality);
}

}  // namespace paceline
