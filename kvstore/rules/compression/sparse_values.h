#pragma once
// Encodes the values of largest magnitude with their places: their number (u32), then their indices (u32, ascending),
// then the values (float32).

#include "compression/encoded.h"

namespace paceline::sparse_values {

inline std::size_t bytes_of(std::int64_t kept) { return 4 + static_cast<std::size_t>(kept) * 8; }

// Writes the `kept` values of largest magnitude. Among equal magnitudes, the first values are kept. Returns the number
// of bytes.
std::size_t write_largest(std::span<const float> values, std::int64_t kept, std::byte* out);
// As Codec::check() and Codec::decode(). `codec` is the name for error messages.
void check(const char* codec, EncodedBytes bytes, std::int64_t count);
void decode(EncodedBytes bytes, std::int64_t begin, std::span<float> out);
// Calls visit(index) for every index.
template <class Visit>
void for_each_index(EncodedBytes bytes, Visit visit) {
  const auto kept = encoded::load<std::uint32_t>(bytes.data());
  for (std::size_t i = 0; i < kept; ++i) visit(encoded::load<std::uint32_t>(bytes.data() + 4 + 4 * i));
}

}  // namespace paceline::sparse_values
