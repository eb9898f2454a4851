#pragma once
// NumPy's arrays in .npy and .npz, whose rows are read in any order.

#include <paceline/dtype.h>
#include <paceline/shape.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "file.h"

namespace paceline::io {

// An array; row i is everything at index i of its first axis. Thread-safe.
class NumpyArray {
 public:
  // The array whose header is at `offset` of `file`.
  NumpyArray(std::string name, std::shared_ptr<const InputFile> file, std::uint64_t offset, std::uint64_t bytes);
  // The array in these bytes.
  NumpyArray(std::string name, std::string path, std::string bytes);

  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  const Shape& row_shape() const { return row_shape_; }
  std::size_t row_bytes() const { return row_bytes_; }
  // Throws IoError, Corrupt.
  void append_row(std::int64_t row, std::string& to) const;

 private:
  void read(std::uint64_t offset, std::size_t count, char* to) const;
  void parse_header();

  std::string name_;
  std::string path_;                       // for errors
  std::shared_ptr<const InputFile> file_;  // null: the bytes are in memory
  std::string memory_;
  std::uint64_t begin_ = 0;
  std::uint64_t bytes_ = 0;
  DType dtype_ = DType::kFloat32;
  std::int64_t rows_ = 0;
  Shape row_shape_;
  std::size_t row_bytes_ = 0;
};

// The arrays of a file. `x.npy` holds one array, which is called "x"; an .npz holds several. Compressed arrays are
// unpacked into memory.
// Throws IoError, Corrupt.
std::vector<NumpyArray> read_numpy(const std::string& path);

}  // namespace paceline::io
