#pragma once
// Random numbers from a counter: number i of a seed is a function of the seed and i alone. So every device, thread and
// team size draws the same numbers, in any order. The generator is Philox4x32-10 (Salmon et al., 2011).

#include <paceline/host_device.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace paceline {

// A block of 128 random bits.
struct RandomBits {
  std::uint32_t word[4];  // independent of each other
};

// Two independent numbers.
struct RandomPair {
  double first;   // one of them
  double second;  // the other
};

// The generator itself: makes four random words of four words of counter and two of key.
PACELINE_HOST_DEVICE inline RandomBits philox(RandomBits counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Block `index` of the sequence that `seed` and `stream` name. Sequences of different streams have nothing in common.
PACELINE_HOST_DEVICE inline RandomBits random_bits(std::uint64_t seed, std::uint64_t index, std::uint64_t stream = 0) {
  return philox({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                  static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}},
                static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

// A number in [0, 1) from 24 of the bits. Every value is exact.
PACELINE_HOST_DEVICE inline float uniform_float(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// A number in [0, 1) from 53 of the bits. Every value is exact.
PACELINE_HOST_DEVICE inline double uniform_double(std::uint32_t high, std::uint32_t low) {
  return static_cast<double>((std::uint64_t{high} << 21) | (low >> 11)) * 0x1p-53;
}

// Number `index` of the sequence, in [0, 1). Four neighbours share a block: in a loop, take them from random_bits().
PACELINE_HOST_DEVICE inline float random_uniform(std::uint64_t seed, std::uint64_t index, std::uint64_t stream = 0) {
  return uniform_float(random_bits(seed, index / 4, stream).word[index % 4]);
}

// Two independent standard normal numbers from two uniform ones, `u` in (0, 1] and `v` in [0, 1) (Box and Muller). It
// uses only +, -, *, / and the square root, which IEEE 754 defines to the last bit. So the result is the same on every
// processor where operations are not fused (-ffp-contract=off, -fmad=false).
PACELINE_HOST_DEVICE inline RandomPair normal_pair(double u, double v) {
  // log u = exponent * log 2 + 2 atanh((m - 1) / (m + 1)), m in [sqrt(1/2), sqrt(2))
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(u);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double f = (m - 1) / (m + 1);
  const double s = f * f;
  double series = 1.0 / 21;
  for (int n = 19; n >= 1; n -= 2) series = series * s + 1.0 / n;
  const double radius = std::sqrt(-2 * (exponent * 0.69314718055994530942 + 2 * f * series));

  // Angle 2 pi v = quarter * pi/2 + a, a in [-pi/4, pi/4]
  const int quarter = static_cast<int>(v * 4 + 0.5);  // NOLINT(bugprone-incorrect-roundings): the same on a device
  const double a = (v * 4 - quarter) * 1.57079632679489661923;
  const double a2 = a * a;
  double sine = 1;
  double cosine = 1;
  for (int n = 16; n >= 2; n -= 2) {
    sine = 1 - sine * a2 * (1.0 / (n * (n + 1)));
    cosine = 1 - cosine * a2 * (1.0 / (n * (n - 1)));
  }
  sine *= a;
  const double x = quarter & 1 ? -sine : cosine;
  const double y = quarter & 1 ? cosine : sine;
  return quarter & 2 ? RandomPair{-radius * x, -radius * y} : RandomPair{radius * x, radius * y};
}

}  // namespace paceline
