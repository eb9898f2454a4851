#pragma once
// MNIST's IDX files, plain or compressed by gzip.

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

struct IdxFile {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> values;  // row-major
};

// Reads an IDX file of unsigned bytes. Throws IoError; Corrupt where it is truncated, too long, of another type.
IdxFile read_idx(const std::string& path);

// Writes one, compressed where `path` ends in ".gz"; same bytes for same values. Replaces `path` at the end only.
void write_idx(const std::string& path, const IdxFile& file);

}  // namespace paceline
