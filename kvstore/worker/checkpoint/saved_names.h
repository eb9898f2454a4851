#pragma once
// Escapes names of keys and tables within the names of a saved state, where a ':' separates parts. A ':' in the name of
// a key or table is written "::.". Separators cannot make this text, because parts are not empty.

#include <cstddef>
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

}  // namespace paceline
