#include <paceline/error.h>
#include <paceline/options.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <type_traits>

namespace paceline {
namespace {

// Says what is wrong with the text, or null.
template <class T>
const char* read(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::invalid_argument || stopped != end)
    return std::is_integral_v<T> ? "not a whole number" : "not a number";
  return error == std::errc() ? nullptr : "out of range";
}

const char* read(const std::string& text, std::string& value) {
  value = text;
  return nullptr;
}

const char* read(const std::string& text, bool& value) {
  value = text == "1" || text == "true" || text == "on" || text == "yes";
  const bool known = value || text == "0" || text == "false" || text == "off" || text == "no";
  return known ? nullptr : "not true or false";
}

}  // namespace

Options Options::parse(std::string_view text) {
  Options options;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    const std::string key(item.substr(0, equals));
    require(!key.empty(), "'", item, "' has no key; options are written key=value,key=value");
    const std::string value = equals == std::string_view::npos ? "1" : std::string(item.substr(equals + 1));
    require(options.values_.emplace(key, value).second, "option '", key, "' is given twice");
  }
  return options;
}

template <class T>
T Options::get(const std::string& key, const T& otherwise) const {
  known_.insert(key);
  const auto found = values_.find(key);
  if (found == values_.end()) return otherwise;
  T value{};
  const char* const wrong = read(found->second, value);
  require(!wrong, "option ", key, "=", found->second, " is ", wrong);
  return value;
}

template bool Options::get(const std::string&, const bool&) const;
template int Options::get(const std::string&, const int&) const;
template std::int64_t Options::get(const std::string&, const std::int64_t&) const;
template float Options::get(const std::string&, const float&) const;
template double Options::get(const std::string&, const double&) const;
template std::string Options::get(const std::string&, const std::string&) const;

void Options::reject_unknown(std::string_view owner) const {
  for (const auto& [key, value] : values_) {
    if (known_.count(key)) continue;
    std::string known;
    for (const std::string& name : known_) known += " " + name;
    throw InvalidArgument(str("unknown option '", key, "' of ", owner, "; known:", known.empty() ? " none" : known));
  }
}

std::string Options::text() const {
  std::string text;
  for (const auto& [key, value] : values_) text += (text.empty() ? "" : ",") + key + "=" + value;
  return text;
}

Spec Spec::parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  Spec spec{std::string(text.substr(0, colon)), {}};
  require(!spec.name.empty(), "'", text, "' has no name; it is written NAME or NAME:key=value,key=value");
  if (colon != std::string_view::npos) spec.options = Options::parse(text.substr(colon + 1));
  return spec;
}

std::string Spec::text() const { return options.empty() ? name : name + ":" + options.text(); }

}  // namespace paceline
