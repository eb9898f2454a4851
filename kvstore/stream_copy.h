#pragma once
// Copies past the caches, for what is not read soon: it pushes out nothing, and is not read before it is overwritten.

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace paceline {

// What has so many bytes is out of the caches before all of it is used.
constexpr std::size_t kFillsCaches = std::size_t{16} << 20;

// Other threads see the bytes only after stream_end().
inline void stream_copy(const void* from, void* to, std::size_t bytes) {
#ifdef __SSE2__
  constexpr std::size_t kLine = 64;
  if (reinterpret_cast<std::uintptr_t>(to) % kLine == 0) {
    const auto* source = static_cast<const __m128i*>(from);
    auto* target = static_cast<__m128i*>(to);
    for (const __m128i* end = source + bytes / kLine * (kLine / sizeof(__m128i)); source != end; ++source, ++target)
      _mm_stream_si128(target, _mm_loadu_si128(source));
    from = source;
    to = target;
    bytes %= kLine;
  }
#endif
  std::memcpy(to, from, bytes);
}

inline void stream_end() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace paceline
