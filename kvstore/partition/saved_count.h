#pragma once

#include <cstdint>

namespace paceline {

// The largest number of examples or updates that a saved state may count. It leaves room to count on. Workers check it
// before a load changes anything, and servers because they trust no worker.
inline constexpr std::int64_t kMostSavedCount = std::int64_t{1} << 62;

}  // namespace paceline
