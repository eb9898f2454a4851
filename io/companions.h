#pragma once
// The index and the checksums of a record file, as its readers use them.

#include <paceline/recordio.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::io {

// read_index() and read_checksums() of text that was read; `path` is for errors.
RecordIndex parse_index(const std::string& path, std::string_view text);
std::vector<RecordChecksum> parse_checksums(const std::string& path, std::string_view text);

// What lies beside a record file, each read once.
struct Companions {
  std::optional<RecordIndex> index;                      // sorted by offset
  std::optional<std::vector<RecordChecksum>> checksums;  // one for each entry of the index; needs one
  std::uint32_t index_crc32c = 0;                        // of `x.idx`
  std::uint32_t checksum_crc32c = 0;                     // of `x.crc`
};

// Throws IoError, and Corrupt where one cannot be read or they do not fit each other.
Companions read_companions(const std::string& record_path);

}  // namespace paceline::io
