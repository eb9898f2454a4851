#pragma once
// Prefetches memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace paceline {

enum class Cache { kFirst, kSecond };

// Prefetches the cache lines of the `bytes` bytes at `at`, but of at most 512 bytes. The function is always inlined.
// Otherwise gcc drops its calls, because the function seems to do nothing.
template <Cache kCache>
[[gnu::always_inline]] inline void prefetch_lines(const std::byte* at, std::size_t bytes) {
  constexpr std::size_t kLine = 64, kMost = 8 * kLine;
  constexpr int kLocality = kCache == Cache::kFirst ? 3 : 2;
  const std::byte* const end = at + std::min(bytes, kMost);
  for (at -= reinterpret_cast<std::uintptr_t>(at) % kLine; at < end; at += kLine) __builtin_prefetch(at, 0, kLocality);
}

}  // namespace paceline
