#include "url.h"

#include <algorithm>

namespace paceline::remote {

std::string percent_encoded(std::string_view text, std::string_view kept) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos ||
                       kept.find(c) != std::string_view::npos;
    if (plain) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return encoded;
}

std::string_view scheme_of(std::string_view path) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto further = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '.' || c == '-'; };
  const auto end = static_cast<std::size_t>(std::ranges::find_if_not(path, further) - path.begin());
  const bool is_url = end > 0 && letter(path[0]) && path.substr(end).starts_with("://");
  return path.substr(0, is_url ? end : 0);
}

std::string shown(std::string_view url) {
  const std::size_t scheme = url.find("://");
  const std::size_t begin = scheme == std::string_view::npos ? 0 : scheme + 3;
  const std::string_view behind = url.substr(begin);
  // A key of an object may hold any of these signs.
  const std::string_view place = url.starts_with("s3://") ? behind : behind.substr(0, behind.find_first_of("?#"));
  const std::size_t user = place.substr(0, place.find('/')).rfind('@');
  return printable(url.substr(0, begin), begin) +
         printable(place.substr(user == std::string_view::npos ? 0 : user + 1), place.size());
}

std::string printable(std::string_view text, std::size_t most) {
  std::string result(text.substr(0, most));
  std::ranges::replace_if(
      result, [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

std::string xml_text(std::string_view xml, std::string_view name) {
  const std::string open = '<' + std::string(name) + '>', close = "</" + std::string(name) + '>';
  const std::size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return {};
  const std::string_view behind = xml.substr(begin + open.size());
  const std::size_t end = behind.find(close);
  return end == std::string_view::npos ? std::string() : std::string(behind.substr(0, end));
}

}  // namespace paceline::remote
