#pragma once
// Helpers of codecs: numbers at unaligned addresses, checks of sizes, sums.

#include <paceline/compression.h>
#include <paceline/detail/split_mix.h>
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
    throw Corrupt(str("a gradient of ", count, " elements encoded as ", codec, " has ", bytes.size(),
                      " bytes, expected ", expected));
}

inline std::uint32_t magnitude_bits(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

// The sum of term(value) over the values. The function adds up independent partial sums, so that the compiler can
// vectorise the loop. The order of the additions is always the same.
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

// `ratio` times `count` as a whole number of elements, at least 1 unless `count` is 0.
inline std::int64_t share_of(double ratio, std::int64_t count) {
  const auto wanted = static_cast<std::int64_t>(std::llround(ratio * static_cast<double>(count)));
  return std::min(count, std::max<std::int64_t>(1, wanted));
}

inline double parse_ratio(const Options& options, double otherwise) {
  const double ratio = options.get("ratio", otherwise);
  require(ratio > 0 && ratio <= 1, "ratio is ", ratio, ", expected a number above 0, at most 1");
  return ratio;
}

// Mixes two numbers into one seed.
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return detail::split_mix(a, b); }

// Writes one bit for each element: 0 for a negative element, else 1. The highest bit of a byte belongs to the first of
// its eight elements.
inline void write_bits(std::span<const float> values, std::byte* bits) {
  for (std::size_t i = 0; i < values.size(); i += 8) {
    unsigned byte = 0;
    for (std::size_t j = i; j < std::min(i + 8, values.size()); ++j)
      byte |= unsigned{!(values[j] < 0)} << (7 - (j - i));
    bits[i / 8] = static_cast<std::byte>(byte);
  }
}
inline void read_bits(const std::byte* bits, std::int64_t begin, const std::array<float, 2>& meaning,
                      std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t place = static_cast<std::size_t>(begin) + i;
    out[i] = meaning[std::to_integer<unsigned>(bits[place / 8]) >> (7 - place % 8) & 1];
  }
}

}  // namespace paceline::encoded
