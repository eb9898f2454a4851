#pragma once
// Random numbers by counter: the draws of one worker's one step depend on the seed and these two numbers only, never on
// the order in which events happen.

#include <paceline/detail/split_mix.h>

#include <cmath>
#include <cstdint>
#include <numbers>

namespace paceline::sim {

class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t stream, std::uint64_t entity, std::uint64_t index)
      : state_(mix(mix(mix(mix(seed) ^ stream) ^ entity) ^ index)) {}

  std::uint64_t bits() { return mix(state_++); }
  // In (0, 1).
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
  double exponential() { return -std::log(uniform()); }
  double normal() {
    const double radius = std::sqrt(2 * exponential());
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  static std::uint64_t mix(std::uint64_t x) { return detail::split_mix(x); }

  std::uint64_t state_;
};

}  // namespace paceline::sim
