#pragma once
// The checksum of records, manifests and checkpoints.

#include <cstdint>
#include <string_view>

namespace paceline {

// CRC-32C (Castagnoli) of `bytes`. Pass an earlier result as `seed` to continue it. Thread-safe.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t seed = 0);

}  // namespace paceline
