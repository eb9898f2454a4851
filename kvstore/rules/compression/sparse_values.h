#pragma once
// The largest values with their places: count:u32, then the indices (u32, growing), then the values (float32).

#include "compression/encoded.h"

namespace paceline::sparse_values {

inline std::size_t bytes_of(std::int64_t kept) { return 4 + static_cast<std::size_t>(kept) * 8; }

// Writes the `kept` values of largest magnitude. Of equal values the first come first. Returns the number of bytes.
std::size_t write_largest(std::span<const float> values, std::int64_t kept, std::byte* out);
void check(const char* codec, EncodedBytes bytes, std::int64_t count);
void decode(EncodedBytes bytes, std::int64_t begin, std::span<float> out);
// Calls visit(index) for every index.
template <class Visit>
void for_each_index(EncodedBytes bytes, Visit visit) {
  const auto kept = encoded::load<std::uint32_t>(bytes.data());
  for (std::size_t i = 0; i < kept; ++i) visit(encoded::load<std::uint32_t>(bytes.data() + 4 + 4 * i));
}

}  // namespace paceline::sparse_values
