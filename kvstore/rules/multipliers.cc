#include <paceline/error.h>
#include <paceline/optimizer.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "pattern.h"

namespace paceline {
namespace {

constexpr const char *kRate = "lr_mult", *kDecay = "decay_mult";

// Parses PATTERN:FACTOR.
Multiplier parse_multiplier(const std::string& option, const std::string& item) {
  const std::size_t colon = item.rfind(':');
  require(colon != std::string::npos && colon > 0, option, ": '", item,
          "' is not written PATTERN:FACTOR; several are joined by +, as *bias*:0+head*:10");
  Multiplier multiplier{item.substr(0, colon), 0};
  const std::string number = item.substr(colon + 1);
  const char* const end = number.data() + number.size();
  const auto [stopped, error] = std::from_chars(number.data(), end, multiplier.factor);
  require(error == std::errc() && stopped == end && std::isfinite(multiplier.factor) && multiplier.factor >= 0, option,
          ": the factor of '", multiplier.pattern, "' is '", number, "', expected a finite number of at least 0");
  return multiplier;
}

std::vector<Multiplier> parse_list(const Options& options, const std::string& option) {
  std::vector<Multiplier> list;
  const std::string text = options.get(option, "");
  for (std::size_t begin = 0; begin <= text.size() && !text.empty();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    list.push_back(parse_multiplier(option, text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return list;
}

double factor_of(const std::vector<Multiplier>& list, std::string_view key) {
  const auto first = std::ranges::find_if(list, [&](const Multiplier& one) { return matches(one.pattern, key); });
  return first == list.end() ? 1 : first->factor;
}

}  // namespace

Multipliers Multipliers::parse(const Options& options) {
  Multipliers multipliers;
  multipliers.rate_ = parse_list(options, kRate);
  multipliers.decay_ = parse_list(options, kDecay);
  return multipliers;
}

KeyFactors Multipliers::of(std::string_view key) const { return {factor_of(rate_, key), factor_of(decay_, key)}; }

std::vector<std::string> Multipliers::unused(std::span<const std::string> keys) const {
  std::vector<std::string> patterns;
  const auto look = [&](const char* option, const std::vector<Multiplier>& list) {
    for (const Multiplier& one : list)
      if (std::ranges::none_of(keys, [&](const std::string& key) { return matches(one.pattern, key); }))
        patterns.push_back(str(option, "=", one.pattern));
  };
  look(kRate, rate_);
  look(kDecay, decay_);
  for (const Multiplier& one : optim::no_decay_on_biases_and_norms())
    std::erase(patterns, str(kDecay, "=", one.pattern));
  return patterns;
}

std::vector<Multiplier> optim::no_decay_on_biases_and_norms() { return {{"*bias*", 0}, {"*gamma", 0}, {"*beta", 0}}; }

}  // namespace paceline
