#pragma once
// Names and counters of a saved state. A ':' separates the parts of a name. A ':' in the name of a key or table is
// written "::.". Separators cannot make this text, because parts are not empty.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace paceline {

std::string escaped(std::string_view name);
std::string unescaped(std::string_view text);
// The position of the first ':' that separates two parts, or npos.
std::size_t find_separator(std::string_view text);

// The table's name and the slot of an array `table:NAME:SLOT`. None if the array belongs to no table.
std::optional<std::pair<std::string, std::string>> parse_table_slot(std::string_view name);
// The text "table:NAME", which the names of a table's arrays and counters contain.
std::string saved_table(const std::string& name);

// Escape and unescape the key in the name `KEY/SLOT` of a worker's state.
std::string escaped_state(std::string_view name);
std::string unescaped_state(std::string_view text);

// Reads the counter `name` of a saved state. Throws InvalidArgument if `text` is not a whole number from 0, or leaves
// no room to count on from it.
std::int64_t read_counter(const std::string& name, const std::string& text);

}  // namespace paceline
