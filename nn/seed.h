#pragma once
// Derives independent seeds from one.

#include <paceline/detail/split_mix.h>

#include <cstdint>
#include <string_view>

namespace paceline::nn {

inline std::uint64_t mix(std::uint64_t seed, std::uint64_t stream) { return detail::split_mix(seed, stream); }

inline std::uint64_t mix(std::uint64_t seed, std::string_view name) {
  for (const char c : name) seed = mix(seed, static_cast<unsigned char>(c));
  return seed;
}

}  // namespace paceline::nn
