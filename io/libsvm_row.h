#pragma once
// A line of LibSVM's format.

#include <paceline/error.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "file.h"
#include "text_numbers.h"

namespace paceline::io {

// Calls element(column, value) for each element, where columns count from 0. Returns the label. `features` 0: any
// number of columns. Throws Corrupt with the reason alone.
template <class Element>
float read_libsvm_row(std::string_view line, bool from_zero, std::int64_t features, const Element& element) {
  Words words(line);
  std::string_view word;
  float label = 0;
  if (!words.next(word) || !parse_finite(word, label))
    throw Corrupt(str(in_quotes(word), " is no label, expected a finite number"));
  const std::int64_t lowest = from_zero ? 0 : 1;
  while (words.next(word)) {
    std::int64_t index = 0;
    float value = 0;
    if (!parse_feature(word, index, value))
      throw Corrupt(str(in_quotes(word), " is no feature, expected index:value with a finite value"));
    const bool inside = index >= lowest && (features == 0 || index - lowest < features);
    if (!inside || index == std::numeric_limits<std::int64_t>::max())
      throw Corrupt(str("index ", index, " is outside, expected ", lowest, " to ",
                        features == 0 ? "any" : std::to_string(features - 1 + lowest)));
    element(index - lowest, value);
  }
  return label;
}

}  // namespace paceline::io
