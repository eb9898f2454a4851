#pragma once
// The members of a zip archive.

#include <cstdint>
#include <string>
#include <vector>

#include "file.h"

namespace paceline::io {

// A file in an archive.
struct ZipMember {
  std::string name;
  bool stored = false;       // as it is, without compression
  std::uint64_t offset = 0;  // of its first byte
  std::uint64_t packed = 0;  // bytes in the archive
  std::uint64_t bytes = 0;   // of the file
  std::uint32_t crc32 = 0;   // of the file
};

// As the archive's directory lists them. Throws IoError, Corrupt.
std::vector<ZipMember> zip_members(const InputFile& archive);

// The bytes of a member, checked. Throws IoError, Corrupt.
std::string unpack(const InputFile& archive, const ZipMember& member);

}  // namespace paceline::io
