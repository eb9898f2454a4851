#pragma once
// SplitMix64 (Steele, Lea & Flood 2014): random numbers that are known by their position, so no order changes them.

#include <cstdint>

namespace paceline::detail {

// Number i of a seed is finalised(seed + i * kSplitMixStep); the first has i = 1.
constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

// The finaliser: every bit of the result depends on every bit of `x`. It maps 0 to 0.
constexpr std::uint64_t finalised(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The first number of a seed, as a hash of it.
constexpr std::uint64_t split_mix(std::uint64_t seed) { return finalised(seed + kSplitMixStep); }

// Number `position` of a seed, counted from 0.
constexpr std::uint64_t split_mix(std::uint64_t seed, std::uint64_t position) {
  return finalised(seed + (position + 1) * kSplitMixStep);
}

}  // namespace paceline::detail
