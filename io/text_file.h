#pragma once
// Text files whose parts are read in any order.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "file.h"

namespace paceline::io {

// Thread-safe after construction.
class TextFile {
 public:
  // Which files are held in memory.
  enum class Memory {
    kSmall,    // those of at most kMostHeld bytes; files that gzip has compressed are refused
    kUnpacked  // those that gzip has compressed, unpacked
  };
  static constexpr std::uint64_t kMostHeld = std::uint64_t{64} << 20;

  // Throws IoError, Corrupt.
  TextFile(const std::string& path, Memory memory);

  const std::string& path() const { return path_; }  // as messages show it
  std::uint64_t size() const { return file_ ? file_->size() : held_.size(); }
  // These bytes, which are inside. They are in memory, or else read into `buffer`. Throws IoError; Corrupt where the
  // file has become shorter.
  std::string_view read(std::uint64_t offset, std::size_t count, std::string& buffer) const;

 private:
  std::string path_;
  std::optional<InputFile> file_;  // none: `held_` has all of it
  std::string held_;
};

}  // namespace paceline::io
