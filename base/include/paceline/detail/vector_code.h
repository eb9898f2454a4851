#pragma once
// Loops compiled for wider vectors than the build as a whole, chosen when they run. Not installed.

namespace paceline::detail {

// Behind the parameters of a lambda, whose loops then become part of whatever calls it.
#define PACELINE_INLINE __attribute__((always_inline))

#ifdef __x86_64__
inline bool has_avx2() {
  static const bool found = __builtin_cpu_supports("avx2");
  return found;
}
inline bool has_avx512() {
  static const bool found = __builtin_cpu_supports("avx512f");
  return found;
}

template <class Body>
[[gnu::target("avx2")]] void call_avx2(const Body& body) {
  body();
}
template <class Body>
[[gnu::target("avx512f")]] void call_avx512(const Body& body) {
  body();
}
#endif

// Calls body(), a lambda with PACELINE_INLINE, whose loops are compiled for AVX2 as well. That has no fused
// multiply-add, so the results do not depend on the processor.
template <class Body>
void vector_code(const Body& body) {
#ifdef __x86_64__
  if (has_avx2()) return call_avx2(body);
#endif
  body();
}

// The same, for AVX-512 too: for loops that wait for memory, as a processor has more lines under way the fewer
// instructions each takes. AVX-512 fuses multiply and add unless the source is compiled with -ffp-contract=off.
template <class Body>
void wide_code(const Body& body) {
#ifdef __x86_64__
  if (has_avx512()) return call_avx512(body);
#endif
  vector_code(body);
}

}  // namespace paceline::detail
