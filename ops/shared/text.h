#pragma once
// Text of attributes, for errors and the catalogue.

#include <paceline/error.h>

#include <string>

namespace paceline {

// "(1, 2)" for any range of numbers.
template <class Range>
std::string text_of(const Range& values) {
  std::string text = "(";
  for (const auto& value : values) text += (text.size() > 1 ? ", " : "") + str(value);
  return text + ")";
}

}  // namespace paceline
