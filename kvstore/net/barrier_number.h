#pragma once
// Numbers of barriers. A number holds the epoch of data and a count within the epoch. With these numbers, a worker that
// returns to a running job skips the barriers that the other workers have passed. It then meets the other workers at
// the same place of the program.

#include <cstdint>

namespace paceline {

// A number larger than that of every barrier before data_part(epoch), and smaller than that of every later barrier. 0
// if `epoch` is negative or too large.
inline std::uint64_t barriers_before(std::int64_t epoch) {
  return epoch < 0 || epoch >= INT32_MAX ? 0 : (static_cast<std::uint64_t>(epoch) + 1) << 32;
}
// Does the barrier belong to no epoch?
inline bool is_plain_barrier(std::uint64_t number) { return number < barriers_before(0); }

}  // namespace paceline
