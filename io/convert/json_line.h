#pragma once
// One line of JSON lines.

#include <nlohmann/json_fwd.hpp>

#include <string_view>

namespace paceline::io {

// The object that a line holds. Throws Corrupt with the reason alone.
nlohmann::json parse_object(std::string_view line);

}  // namespace paceline::io
