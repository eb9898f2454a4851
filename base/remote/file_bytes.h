#pragma once
// Bytes of open files.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace paceline::remote {

// Throws IoError where the system does, naming `what`.
void write_at(int file, std::uint64_t offset, std::string_view bytes, const std::string& what);
std::string read_at(int file, std::uint64_t offset, std::size_t bytes, const std::string& what);
// The file has no bytes from now on.
void empty_file(int file, const std::string& what);

}  // namespace paceline::remote
