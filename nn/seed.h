#pragma once
// Derives independent seeds from one.

#include <cstdint>
#include <string_view>

namespace paceline::nn {

// SplitMix64 (Steele, Lea & Flood 2014) of the sum.
inline std::uint64_t mix(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t z = seed + 0x9e3779b97f4a7c15ull * (stream + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

inline std::uint64_t mix(std::uint64_t seed, std::string_view name) {
  for (const char c : name) seed = mix(seed, static_cast<unsigned char>(c));
  return seed;
}

}  // namespace paceline::nn
