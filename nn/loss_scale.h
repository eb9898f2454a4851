#pragma once
// Dynamic loss scaling (Micikevicius et al. 2018, "Mixed precision training"): a loss times the scale keeps small
// gradients inside of float16; gradients are divided by it again. The scale is a power of two, so nothing is rounded.

#include <paceline/error.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>

namespace paceline::nn {

class LossScale {
 public:
  static constexpr std::int64_t kGrowAfter = 2000;  // steps whose gradients are all finite

  double value() const { return static_cast<double>(std::int64_t{1} << exponent_); }
  std::int64_t good_steps() const { return good_steps_; }

  // Call this once for each step, when its gradients are computed. It adjusts the scale for the next step. Returns
  // `finite`: false tells the caller to drop the gradients of this step.
  bool update(bool finite) {
    if (!finite) {
      if (exponent_ == 0)
        throw Error(
            "gradients are not finite in float16, however small the loss scale: the training has diverged; "
            "lower the learning rate, clip the gradients or use precision bfloat16");
      --exponent_;
      good_steps_ = 0;
    } else if (++good_steps_ == kGrowAfter) {
      if (exponent_ < kMost) ++exponent_;
      good_steps_ = 0;
    }
    return finite;
  }

  // None for numbers that no scale has.
  static std::optional<LossScale> of(std::int64_t value, std::int64_t good_steps) {
    const bool possible = value > 0 && std::has_single_bit(static_cast<std::uint64_t>(value)) &&
                          value <= std::int64_t{1} << kMost && good_steps >= 0 && good_steps < kGrowAfter;
    if (!possible) return std::nullopt;
    LossScale scale;
    scale.exponent_ = std::countr_zero(static_cast<std::uint64_t>(value));
    scale.good_steps_ = good_steps;
    return scale;
  }

  // text() writes the whole state. parse() reads it back, and ignores what follows the two numbers. It returns none
  // where they are missing or impossible.
  std::string text() const { return str(std::int64_t{1} << exponent_, ' ', good_steps_); }
  static std::optional<LossScale> parse(const std::string& text) {
    std::istringstream words(text);
    std::int64_t value = 0, good_steps = 0;
    return words >> value >> good_steps ? of(value, good_steps) : std::nullopt;
  }

 private:
  static constexpr int kMost = 32;
  int exponent_ = 16;
  std::int64_t good_steps_ = 0;
};

}  // namespace paceline::nn
