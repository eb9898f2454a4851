#pragma once
// Random numbers and bytes that nobody can guess. The functions are thread-safe. They throw Error if the system has no
// random bytes.

#include <cstddef>
#include <cstdint>
#include <string>

namespace paceline {

std::string random_bytes(std::size_t count);
std::uint64_t random_number();

}  // namespace paceline
