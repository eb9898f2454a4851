#pragma once
// Writes a file so that others see the old contents or the new ones, whole, whatever fails in between.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace paceline::detail {

// Goes to a temporary file in the same folder; commit() makes it durable and renames it over `path`. For s3:// it
// uploads a temporary file of this host. Destroyed without commit(), it leaves no trace. A killed process leaves its
// temporary file; the next AtomicFile of the same path on the same host removes it. All functions throw IoError naming
// the file (disk full, no such folder, ...). Not thread-safe.
class AtomicFile {
 public:
  // Throws also where `path` is there and not a regular file.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  template <class T>
  void write_value(T value) {
    write(&value, sizeof value);
  }
  // Replaces bytes that write() was given before.
  void overwrite(std::uint64_t offset, std::string_view bytes);
  void commit();

  static void write_text(const std::string& path, std::string_view text);

 private:
  void flush();
  void write_through(const char* data, std::size_t bytes);
  [[noreturn]] void fail(const char* what) const;

  const std::string path_;
  std::string temporary_;
  std::string buffer_;
  int file_ = -1;
};

}  // namespace paceline::detail
