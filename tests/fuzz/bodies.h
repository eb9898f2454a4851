#pragma once
// Bodies of messages from the bytes of an input.

#include "fuzz.h"
#include "parse_body.h"

namespace paceline::fuzz {

// What an input of that size may make of memory. Each byte may be an empty element of a repeated field.
inline std::size_t bound(const std::string& bytes) { return 16384 + 512 * bytes.size(); }

// Protocol Buffers takes up to 50 MB for a text before it sees that the bytes end earlier.
constexpr std::size_t kText = 50'000'000;

template <class Body>
std::optional<Body> body_of(const std::string& bytes) {
  Message message;
  message.body = bytes;
  return within(kText + bound(bytes), [&] { return parsed<Corrupt>([&] { return parse_body<Body>(message); }); });
}

}  // namespace paceline::fuzz
