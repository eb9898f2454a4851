#include "files/file_reader.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/remote.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

namespace paceline::detail {

std::uint64_t byte_count(std::span<const std::int64_t> sizes, DType dtype) {
  constexpr std::int64_t kTooMany = std::numeric_limits<std::int64_t>::max();
  auto bytes = static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t size : sizes)
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) return kTooMany;
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

FileReader::FileReader(const std::string& path)
    : path_(redacted(path)),
      file_(is_remote(path) ? ::fdopen(download_unnamed(path), "rb") : std::fopen(path.c_str(), "rbe")) {
  struct stat status {};
  if (!file_ || ::fstat(::fileno(file_.get()), &status) != 0)
    throw IoError("cannot open " + path + ": " + std::generic_category().message(errno));
  if (!S_ISREG(status.st_mode)) throw IoError("cannot read " + path + ": it is not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileReader::FileReader(const std::string& path, FileStart start)
    : path_(redacted(path)), start_(std::move(start.bytes)), file_(::fmemopen(start_.data(), start_.size(), "rb")) {
  if (!file_) throw IoError("cannot read " + path_ + ": " + std::generic_category().message(errno));
  size_ = start.size.value_or(start_.size());
}

void FileReader::read(void* to, std::uint64_t bytes) {
  if (bytes > left()) corrupt("the file ends here, where ", bytes, " more bytes should be (", left(), " are left)");
  if (bytes > 0 && std::fread(to, 1, bytes, file_.get()) != bytes) {
    if (std::ferror(file_.get())) throw IoError("cannot read " + path_ + ": " + std::generic_category().message(errno));
    corrupt("the file was cut short while it was read");
  }
  offset_ += bytes;
}

std::string FileReader::text(std::uint64_t bytes) {
  if (bytes > left()) corrupt("a text of ", bytes, " bytes is longer than what is left of the file (", left(), ")");
  std::string text(bytes, '\0');
  read(text.data(), bytes);
  return text;
}

NDArray FileReader::array(const std::vector<std::int64_t>& sizes, DType dtype, Engine& engine) {
  for (const std::int64_t size : sizes)
    if (size < 0) corrupt("a dimension of ", size, " elements");
  const std::uint64_t bytes = byte_count(sizes, dtype);
  if (bytes > left()) corrupt("an array is larger than what is left of the file (", left(), " bytes)");
  if (sizes.size() > Shape::kMaxDims)
    unsupported("an array of ", sizes.size(), " dimensions; at most ", Shape::kMaxDims, " are supported");
  const NDArray result(Shape(std::span<const std::int64_t>(sizes)), dtype, Device(), engine);
  const std::uint64_t start = offset_;
  read(ArrayBuilder::data(result), bytes);
  if (dtype == DType::kBool) {
    const auto* values = static_cast<const std::uint8_t*>(ArrayBuilder::data(result));
    for (std::uint64_t i = 0; i < bytes; ++i) {
      if (values[i] <= 1) continue;
      offset_ = start + i;
      corrupt("a bool of value ", int{values[i]});
    }
  }
  return result;
}

}  // namespace paceline::detail
