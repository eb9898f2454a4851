#include "checkpoint/saved_names.h"

#include <paceline/error.h>

#include <charconv>

#include "saved_count.h"

namespace paceline {
namespace {

constexpr std::string_view kColon = "::.", kTable = "table:";

}  // namespace

std::string escaped(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c == ':')
      text += kColon;
    else
      text += c;
  }
  return text;
}

std::string unescaped(std::string_view text) {
  std::string name;
  for (std::size_t i = 0; i < text.size(); ++i) {
    name += text[i];
    if (text.substr(i).starts_with(kColon)) i += kColon.size() - 1;
  }
  return name;
}

std::size_t find_separator(std::string_view text) {
  std::size_t at = text.find(':');
  while (at != std::string_view::npos && text.substr(at).starts_with(kColon)) at = text.find(':', at + kColon.size());
  return at;
}

std::optional<std::pair<std::string, std::string>> parse_table_slot(std::string_view name) {
  if (!name.starts_with(kTable) || find_separator(name) != kTable.size() - 1) return std::nullopt;
  const std::string_view rest = name.substr(kTable.size());
  const std::size_t separator = find_separator(rest);
  if (separator == std::string_view::npos) return std::nullopt;
  return std::pair(unescaped(rest.substr(0, separator)), std::string(rest.substr(separator + 1)));
}

std::string saved_table(const std::string& name) { return std::string(kTable) + escaped(name); }

std::string escaped_state(std::string_view name) {
  const std::size_t slot = name.rfind('/');
  if (slot == std::string_view::npos) return escaped(name);
  return escaped(name.substr(0, slot)) + std::string(name.substr(slot));
}

std::string unescaped_state(std::string_view text) {
  const std::size_t slot = text.rfind('/');
  if (slot == std::string_view::npos) return unescaped(text);
  return unescaped(text.substr(0, slot)) + std::string(text.substr(slot));
}

std::int64_t read_counter(const std::string& name, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= kMostSavedCount,
          "the checkpoint's counter ", name, " is '", text, "', expected a whole number up to ", kMostSavedCount);
  return value;
}

}  // namespace paceline
