#pragma once
// Numbers in text.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <system_error>

namespace paceline::io {

// Does all of `word` name a number?
template <class T>
bool parse_number(std::string_view word, T& number) {
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') word.remove_prefix(1);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size();
}

// Programs that write doubles write some that a float rounds to 0.
inline bool parse_finite(std::string_view word, float& number) {
  if (parse_number(word, number)) return std::isfinite(number);
  double precise = 0;
  if (!parse_number(word, precise) || !(std::abs(precise) < 1)) return false;
  number = static_cast<float>(precise);
  return true;
}

// The words of a line of LibSVM's format.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line.substr(0, line.find('#'))) {}

  bool next(std::string_view& word) {
    constexpr std::string_view kBlank = " \t\r\n\v\f";
    rest_.remove_prefix(std::min(rest_.size(), rest_.find_first_not_of(kBlank)));
    word = rest_.substr(0, rest_.find_first_of(kBlank));
    rest_.remove_prefix(word.size());
    return !word.empty();
  }

 private:
  std::string_view rest_;
};

// A word `index:value`; false where it is none.
inline bool parse_feature(std::string_view word, std::int64_t& index, float& value) {
  const std::size_t colon = word.find(':');
  return colon != std::string_view::npos && parse_number(word.substr(0, colon), index) &&
         parse_finite(word.substr(colon + 1), value);
}

}  // namespace paceline::io
