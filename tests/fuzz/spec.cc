// What a job names by text: modes, optimizers, staleness policies, codecs and initial values of tables.

#include <paceline/compression.h>
#include <paceline/mode.h>
#include <paceline/optimizer.h>
#include <paceline/staleness.h>

#include "fuzz.h"
#include "pattern.h"
#include "rows/table_layout.h"
#include "send/compression_setting.h"

namespace paceline::fuzz {
namespace {

// The same as matches(), slowly.
bool fits(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') return fits(pattern.substr(1), text) || (!text.empty() && fits(pattern, text.substr(1)));
  return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) && fits(pattern.substr(1), text.substr(1));
}

void check_pattern(std::string_view input) {
  constexpr std::size_t kLongest = 12;
  const std::size_t cut = std::min(input.find('/'), input.size());
  const std::string_view pattern = input.substr(0, cut), text = input.substr(std::min(input.size(), cut + 1));
  const bool fit = matches(pattern, text);
  if (pattern.size() <= kLongest && text.size() <= kLongest)
    expect(fit == fits(pattern, text), "'", pattern, "' and '", text, "'");
}

void read_codecs(const Spec& spec, bool lockstep) {
  Options options = spec.options;
  CompressionSetting setting = CompressionSetting::take(&options);
  setting.suit(lockstep);
  setting.describe();
  for (const std::string& name : setting.names()) expect(!name.empty(), "a codec without a name");
  expect(setting.active() || setting.text().empty(), "nothing is compressed as '", setting.text(), "'");
}

template <class Make>
void refused_or_made(const Make& make) {
  parsed<InvalidArgument, NotAvailable>([&] {
    make();
    return true;
  });
}

}  // namespace

// What is made of the text, in one byte; then the text.
void spec(std::string_view input) {
  Cutter cut(input);
  const auto choice = cut.number<std::uint8_t>();
  const std::string_view text = cut.rest();
  if (choice % 7 == 0) return check_pattern(text);
  const auto spec = parsed<InvalidArgument>([&] { return Spec::parse(text); });
  if (!spec) return;
  switch (choice % 7) {
    case 1: return refused_or_made([&] { make_mode(*spec); });
    case 2: return refused_or_made([&] { make_optimizer(*spec); });
    case 3: return refused_or_made([&] { make_staleness(spec->name, spec->options); });
    case 4: return refused_or_made([&] { make_codec(*spec); });
    case 5: return refused_or_made([&] { read_codecs(*spec, choice < 128); });
    default: return refused_or_made([&] { check_table({.name = "t", .rows = 4, .width = 2, .initializer = *spec}); });
  }
}

}  // namespace paceline::fuzz
