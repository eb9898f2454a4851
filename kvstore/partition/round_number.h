#pragma once
// Round numbers in 32 bits, because a partition may have millions of slices.

#include <algorithm>
#include <cstdint>

namespace paceline {

// Recovers a 64-bit round from its low 32 bits: the match nearest to `reference`. Returns `far` if this match is more
// than 2^30 away. The slice may then have been idle for more than 2^31 rounds, so the bits do not identify a round.
inline std::uint64_t round_near(std::uint64_t reference, std::uint32_t kept, std::uint64_t far) {
  const auto ahead = static_cast<std::int32_t>(kept - static_cast<std::uint32_t>(reference));
  if (ahead > 1 << 30 || ahead < -(1 << 30)) return far;
  return ahead < 0 && reference < static_cast<std::uint64_t>(-std::int64_t{ahead})
             ? 0
             : reference + static_cast<std::uint64_t>(std::int64_t{ahead});
}

// The low bits of a round 2^30 before `round`, but not before 0. Callers store them while no round is known.
// round_near() then returns 0, an old round, or `far`.
inline std::uint32_t long_before(std::uint64_t round) {
  return static_cast<std::uint32_t>(round - std::min(round, std::uint64_t{1} << 30));
}

}  // namespace paceline
