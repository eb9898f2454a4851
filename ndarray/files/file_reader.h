#pragma once
// Reads a file from front to back and knows where it is, so that damage is reported with its place.

#include <paceline/detail/remote.h>
#include <paceline/error.h>
#include <paceline/ndarray.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace paceline::detail {

// Bytes of a dense array; the largest int64 where they, or those of its sizes that are not 0, are more than that. Sizes
// must not be negative.
std::uint64_t byte_count(std::span<const std::int64_t> sizes, DType dtype);

class FileReader {
 public:
  // Throws IoError where the file is missing or unreadable.
  explicit FileReader(const std::string& path);
  // Reads the first bytes of this file, which were read already. Reading on throws Corrupt.
  FileReader(const std::string& path, FileStart start);

  std::uint64_t offset() const { return offset_; }
  std::uint64_t left() const { return size_ - offset_; }

  // Throws Corrupt where fewer bytes are left, IoError where the system fails.
  void read(void* to, std::uint64_t bytes);
  template <class T>
  T value() {
    T value;
    read(&value, sizeof value);
    return value;
  }
  std::string text(std::uint64_t bytes);

  // The elements of an array, in row-major order. Its size is checked against what is left of the file before any
  // memory is taken. Throws NotAvailable for more dimensions than an array can have.
  NDArray array(const std::vector<std::int64_t>& sizes, DType dtype, Engine& engine);

  // Throws Corrupt naming file and offset.
  template <class... Parts>
  [[noreturn]] void corrupt(const Parts&... parts) const {
    throw Corrupt(str(path_, ", offset ", offset_, ": ", parts...));
  }
  template <class... Parts>
  [[noreturn]] void unsupported(const Parts&... parts) const {
    throw NotAvailable(str(path_, ", offset ", offset_, ": ", parts...));
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  const std::string path_;
  std::string start_;
  std::unique_ptr<std::FILE, Close> file_;
  std::uint64_t size_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace paceline::detail
