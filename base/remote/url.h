#pragma once
// Parts of URLs, and texts of servers as messages show them.

#include <string>
#include <string_view>

namespace paceline::remote {

// Percent-encodes all bytes but letters, digits, "-._~" and those in `kept`.
std::string percent_encoded(std::string_view text, std::string_view kept = "");

// "s3" of s3://BUCKET/KEY; "" for a path without a scheme.
std::string_view scheme_of(std::string_view path);

// A URL for messages: without user, password and query.
std::string shown(std::string_view url);

// Printable ASCII of what a server said, at most `most` bytes of it.
std::string printable(std::string_view text, std::size_t most);

// What stands between <name> and </name> in XML, at the first place; "" where it does not. Resolves no entities.
std::string xml_text(std::string_view xml, std::string_view name);

}  // namespace paceline::remote
