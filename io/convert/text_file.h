#pragma once
// Text files whose parts are read in any order, plain or compressed by gzip, and the lines in them.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "file.h"

namespace paceline::io {

// Thread-safe after construction.
class TextFile {
 public:
  // A compressed file is unpacked into memory. Throws IoError, Corrupt.
  explicit TextFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return file_ ? file_->size() : unpacked_.size(); }
  // These bytes, which are inside. Throws IoError; Corrupt where the file has become shorter.
  void read(std::uint64_t offset, std::size_t count, std::string& to) const;

 private:
  std::string path_;
  std::optional<InputFile> file_;
  std::string unpacked_;
};

// How a file is cut into lines.
struct LineRules {
  char quote = '\0';     // a line goes on inside of these; 0: there are none
  char delimiter = ',';  // behind which a quote may begin
  std::size_t skip = 0;  // lines at the beginning of each file that are left out
};

// The lines of several files. Empty ones are left out, and a byte order mark at the beginning of a file. Thread-safe
// after construction.
class Lines {
 public:
  // Throws IoError, Corrupt.
  Lines(const std::vector<std::string>& paths, const LineRules& rules);

  std::int64_t size() const { return static_cast<std::int64_t>(entries_.size()); }
  // The bytes of a line without its end.
  void read(std::int64_t line, std::string& to) const;
  std::string place(std::int64_t line) const;  // "rows.csv:17"
  // Calls body(line, its bytes) for every line in order.
  void each(const std::function<void(std::int64_t line, std::string_view bytes)>& body) const;

 private:
  struct Entry {
    std::uint64_t offset;
    std::uint32_t length;
    std::uint32_t number;  // in its file, from 1
  };
  std::size_t file_of(std::int64_t line) const;
  void scan(const TextFile& file, const LineRules& rules);

  std::deque<TextFile> files_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> starts_;  // the first entry of each file
};

// The first lines of a file that are not empty, at most `count`, without a byte order mark. Looks at 2^20 bytes.
std::vector<std::string> first_lines(const std::string& path, const LineRules& rules, std::size_t count);

}  // namespace paceline::io
