#pragma once
// Files by descriptor; every failure is an IoError with host, path and the system's reason.

#include <paceline/detail/host_name.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace paceline::io {

using detail::host_name;

// "cannot open /data/train.rec on host node7: No such file or directory"
[[noreturn]] void throw_io_error(const char* what, const std::string& path, int error);

// Of http://, https:// and s3:// it reads a copy, which is gone with it.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  // Reads up to `count` bytes at `offset`; fewer only at the end of the file. Thread-safe.
  std::size_t read_at(std::uint64_t offset, void* buffer, std::size_t count) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// Buffered writing of a new file.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(std::string_view bytes);
  std::uint64_t size() const { return size_; }
  // Flushes and closes, and, unless told not to, waits until the disk has it all.
  enum Sync { kSync, kNoSync };
  void close(Sync sync = kSync);

 private:
  void flush();

  std::string path_;
  std::string buffer_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

std::string read_file(const std::string& path);
// Throws Corrupt where the file is compressed by gzip.
std::string read_text(const std::string& path);

// What a file holds, for an error: at most 40 bytes, those that are no printable ASCII as \x1f.
std::string in_quotes(std::string_view bytes);

// Can JSON hold this text as it is?
bool is_utf8(std::string_view text);

}  // namespace paceline::io
