#pragma once
// The rows of several text files, plain or compressed by gzip.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "row_store.h"

namespace paceline::io {

// Numbered through the files. Thread-safe after construction.
class Lines {
 public:
  // `header`: the first row of each file is left out. Throws IoError, Corrupt.
  Lines(const std::vector<std::string>& paths, const RowFormat& format, bool header);

  std::int64_t size() const { return starts_.back(); }
  // The bytes of a row without its end of line.
  void read(std::int64_t row, std::string& to) const;
  std::string place(std::int64_t row) const;  // "rows.csv:17"
  // Calls body(row, its bytes) for every row in order.
  void each(const std::function<void(std::int64_t row, std::string_view bytes)>& body) const;

 private:
  // Calls body(file, offset in it, bytes).
  template <class Body>
  void with_row(std::int64_t row, const Body& body) const;

  std::deque<RowFile> files_;
  std::vector<std::int64_t> starts_{0};  // the first row of each file, and the number of rows
};

// The first rows of a file, at most `count`. Reads 2^20 bytes, and up to format.longest where rows are longer.
std::vector<std::string> first_rows(const std::string& path, const RowFormat& format, std::size_t count);

}  // namespace paceline::io
