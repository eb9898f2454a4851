#pragma once
// What codecs share: numbers at any address, the sizes they check, sums.

#include <paceline/compression.h>
#include <paceline/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace paceline::encoded {

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

inline void expect_bytes(const char* codec, EncodedBytes bytes, std::size_t expected, std::int64_t count) {
  if (bytes.size() != expected)
    throw Corrupt(str("a gradient of ", count, " elements encoded as ", codec, " has ", bytes.size(), " bytes, expected ",
                      expected));
}

inline std::uint32_t magnitude_bits(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

// Adds term(value) over the values: independent partial sums, so that the compiler may vectorise, in an order that is
// always the same.
template <class Term>
double sum_of(std::span<const float> values, Term term) {
  constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += static_cast<double>(term(values[i + lane]));
  for (; i < values.size(); ++i) sums[0] += static_cast<double>(term(values[i]));
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

inline double sum_of_magnitudes(std::span<const float> values) {
  return sum_of(values, [](float value) { return std::abs(value); });
}

// Bit i of a run of bits, most significant first.
inline void set_bit(std::byte* bits, std::size_t i) { bits[i / 8] |= std::byte{0x80} >> (i % 8); }
inline bool test_bit(const std::byte* bits, std::size_t i) {
  return (bits[i / 8] & (std::byte{0x80} >> (i % 8))) != std::byte{0};
}

}  // namespace paceline::encoded
