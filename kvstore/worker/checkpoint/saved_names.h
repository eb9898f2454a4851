#pragma once
// Names of keys and tables within the names of a state, where a ':' separates parts. A ':' of the name itself is
// written
// "::.", which no other name of a state holds: parts are not empty.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace paceline {

std::string escaped(std::string_view name);
std::string unescaped(std::string_view text);
// Where the first ':' that separates two parts is; npos: nowhere.
std::size_t find_separator(std::string_view text);

// Of an array `table:NAME:SLOT` the table's name and the slot; none: it belongs to no table.
std::optional<std::pair<std::string, std::string>> parse_table_slot(std::string_view name);
// What the names of a table's arrays and counters hold: "table:NAME".
std::string saved_table(const std::string& name);

// A worker's state `KEY/SLOT` with the key escaped, and back.
std::string escaped_state(std::string_view name);
std::string unescaped_state(std::string_view text);

}  // namespace paceline
