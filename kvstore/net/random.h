#pragma once
// Numbers and bytes that nobody can guess. Thread-safe. They throw Error if the system has none.

#include <cstddef>
#include <cstdint>
#include <string>

namespace paceline {

std::string random_bytes(std::size_t count);
std::uint64_t random_number();

}  // namespace paceline
