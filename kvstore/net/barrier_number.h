#pragma once
// Barriers are numbered by the epoch of data that they belong to and counted in it, so that a worker that returns to a
// running job meets the others where its program is where theirs are, and passes what they have passed.

#include <cstdint>

namespace paceline {

// Larger than every barrier before this worker's part of `epoch` (data_part), smaller than every one after it.
inline std::uint64_t barriers_before(std::int64_t epoch) {
  return epoch < 0 || epoch >= INT32_MAX ? 0 : (static_cast<std::uint64_t>(epoch) + 1) << 32;
}
// Belongs to no epoch.
inline bool is_plain_barrier(std::uint64_t number) { return number < barriers_before(0); }

}  // namespace paceline
