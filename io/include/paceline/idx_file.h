#pragma once
// MNIST's IDX files, plain or compressed by gzip.

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

// An array of unsigned bytes.
struct IdxFile {
  std::vector<std::int64_t> shape;   // sizes of its axes
  std::vector<std::uint8_t> values;  // row-major
};

// Reads an IDX file of unsigned bytes. Throws IoError, and Corrupt where it is too short, too long, or of another type.
IdxFile read_idx(const std::string& path);

// Writes an IDX file, compressed where `path` ends in ".gz". The same values give the same bytes. An existing file is
// replaced once the new one is complete. Throws IoError.
void write_idx(const std::string& path, const IdxFile& file);

}  // namespace paceline
