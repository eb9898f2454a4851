#pragma once
// Writes a file so that others see the old contents or the new ones, whole, whatever fails in between.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace paceline::detail {

// Goes to a temporary file in the same folder; commit() makes it durable and renames it over `path`. For s3:// it
// uploads a temporary file of this host. Destroyed without commit(), it leaves no trace. All functions throw IoError
// naming the file (disk full, no such folder, ...). Not thread-safe.
//
// A killed process leaves its temporary file. The next AtomicFile of the same path removes it, where it can know that
// nobody writes it: on the same host, since its last boot, in a container of the same name, as the same user, and in a
// file system with locks. Elsewhere it stays.
class AtomicFile {
 public:
  // Throws also where `path` is there and not a regular file. commit() gives the new file the mode of the old one.
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
  // Throws also where another process took the temporary file; the file at `path` stays then.
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
  mode_t mode_ = 0;  // of the file at last; until then its owner may also read and write it
};

// Makes the names in the folder of `path` durable, where the file system can. Files are whole either way.
void sync_folder_of(const std::string& path);

}  // namespace paceline::detail
