#pragma once
// Mutations of Protocol Buffers that stay Protocol Buffers.

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

namespace paceline::fuzz {

using Random = std::minstd_rand;

// The body with one field dropped, repeated, renamed, or given another number or text; rarely with other bytes.
std::string mutated_body(const std::string& body, Random& random);

}  // namespace paceline::fuzz
