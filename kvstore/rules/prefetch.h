#pragma once
// Asks for memory before it is used.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace paceline {

enum class Cache { kFirst, kSecond };

// The lines that `bytes` from `at` on lie in, the first eight of them. Not a function that gcc could call: it takes one
// that only prefetches for one that does nothing, and leaves the call out.
template <Cache kCache>
[[gnu::always_inline]] inline void prefetch_lines(const std::byte* at, std::size_t bytes) {
  constexpr std::size_t kLine = 64, kMost = 8 * kLine;
  constexpr int kLocality = kCache == Cache::kFirst ? 3 : 2;
  const std::byte* const end = at + std::min(bytes, kMost);
  for (at -= reinterpret_cast<std::uintptr_t>(at) % kLine; at < end; at += kLine) __builtin_prefetch(at, 0, kLocality);
}

}  // namespace paceline
