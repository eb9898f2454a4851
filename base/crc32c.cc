#include <isa-l/crc.h>
#include <paceline/crc32c.h>

#include <algorithm>

namespace paceline {

std::uint32_t crc32c(std::string_view bytes, std::uint32_t seed) {
  std::uint32_t crc = ~seed;
  while (!bytes.empty()) {
    const std::size_t count = std::min<std::size_t>(bytes.size(), 1 << 30);  // ISA-L takes an int
    // The library's prototype lacks a const; it only reads.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
    crc = crc32_iscsi(data, static_cast<int>(count), crc);
    bytes.remove_prefix(count);
  }
  return ~crc;
}

}  // namespace paceline
