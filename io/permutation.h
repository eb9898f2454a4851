#pragma once
// Seeded random numbers and permutations in constant memory.

#include <paceline/detail/split_mix.h>

#include <cstdint>

namespace paceline::io {

constexpr std::uint64_t mix(std::uint64_t x) { return detail::split_mix(x); }
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return mix(mix(a) ^ b); }

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return mix(state_++); }
  // In [0, bound); uniform but for a bias of bound / 2^64.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t state_;
};

// A permutation of 0 .. size - 1. A Feistel network permutes the numbers below a power of four, at least `size`. It is
// applied again until the value is below `size` (cycle walking).
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t seed) : size_(static_cast<std::uint64_t>(size)), seed_(mix(seed)) {
    while ((std::uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
  }

  std::int64_t operator()(std::int64_t i) const {
    std::uint64_t value = static_cast<std::uint64_t>(i);
    do {
      value = encrypt(value);
    } while (value >= size_);
    return static_cast<std::int64_t>(value);
  }

 private:
  std::uint64_t encrypt(std::uint64_t value) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (mix(seed_ + round, right) & mask);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  static constexpr std::uint64_t kRounds = 6;
  std::uint64_t size_;
  std::uint64_t seed_;
  unsigned half_bits_ = 1;
};

}  // namespace paceline::io
