#pragma once
// Patterns of keys' names.

#include <string_view>

namespace paceline {

// Does `text` match a pattern in which '*' stands for any run of characters and '?' for one?
bool matches(std::string_view pattern, std::string_view text);

}  // namespace paceline
