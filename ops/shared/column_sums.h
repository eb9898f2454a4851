#pragma once
// What the sums of column_sums.cuh need of the caller.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace paceline {

// How many chunks, and so how much workspace.
inline std::int64_t chunks_of_rows(std::int64_t rows) { return std::min<std::int64_t>((rows + 63) / 64, 256); }
inline std::size_t column_sums_workspace(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(2 * chunks_of_rows(rows) * columns) * sizeof(double);
}

}  // namespace paceline
