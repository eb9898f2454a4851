#pragma once
// Writes copies past the caches, for data that is not read soon. The written bytes evict nothing from the caches. The
// processor need not read the target's cache lines before it overwrites them.

#include <paceline/detail/vector_code.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace paceline {

// Data of this size leaves the caches before all of it is used.
constexpr std::size_t kFillsCaches = std::size_t{16} << 20;

#ifdef __x86_64__
namespace stream_copy_detail {

constexpr std::size_t kLine = 64;

inline void copy_lines(const __m128i* from, __m128i* to, std::size_t lines) {
  for (const __m128i* const end = from + lines * (kLine / sizeof(__m128i)); from != end; ++from, ++to)
    _mm_stream_si128(to, _mm_loadu_si128(from));
}
// Writes a cache line with one store, so that more lines fit into the processor's store queue.
[[gnu::target("avx512f")]] inline void copy_lines(const __m512i* from, __m512i* to, std::size_t lines) {
  for (const __m512i* const end = from + lines; from != end; ++from, ++to)
    _mm512_stream_si512(to, _mm512_loadu_si512(from));
}

}  // namespace stream_copy_detail
#endif

// Call stream_end() before other threads may read the bytes. Only whole cache lines go past the caches, and only
// if `to` begins at a cache line.
inline void stream_copy(const void* from, void* to, std::size_t bytes) {
#ifdef __x86_64__
  using namespace stream_copy_detail;
  if (reinterpret_cast<std::uintptr_t>(to) % kLine == 0) {
    const std::size_t lines = bytes / kLine;
    if (detail::has_avx512())
      copy_lines(static_cast<const __m512i*>(from), static_cast<__m512i*>(to), lines);
    else
      copy_lines(static_cast<const __m128i*>(from), static_cast<__m128i*>(to), lines);
    from = static_cast<const std::byte*>(from) + lines * kLine;
    to = static_cast<std::byte*>(to) + lines * kLine;
    bytes %= kLine;
  }
#endif
  std::memcpy(to, from, bytes);
}

inline void stream_end() {
#ifdef __x86_64__
  _mm_sfence();
#endif
}

}  // namespace paceline
