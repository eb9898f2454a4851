#include "text_file.h"

#include <paceline/error.h>

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace paceline::io {
namespace {

std::string unpack(const std::string& path) {
  constexpr std::size_t kBlock = 1 << 20;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw_io_error("open", path, errno);
  std::string bytes;
  for (;;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kBlock);
    const int got = gzread(file.get(), bytes.data() + before, static_cast<unsigned>(kBlock));
    bytes.resize(before + static_cast<std::size_t>(std::max(got, 0)));
    int code = Z_OK;
    const char* const reason = gzerror(file.get(), &code);
    if (got < 0 || (got == 0 && code != Z_OK)) throw Corrupt(str(path, " cannot be unpacked by gzip: ", reason));
    if (got == 0) return bytes;
  }
}

}  // namespace

TextFile::TextFile(const std::string& path, Memory memory) {
  file_.emplace(path);
  path_ = file_->path();
  char head[2] = {};
  const std::string_view begin(head, file_->read_at(0, head, sizeof head));
  if (begin == "\x1f\x8b") {
    if (memory == Memory::kSmall)
      throw Corrupt(str(path_, " is compressed by gzip, which is not read here; unpack it with gunzip first"));
    held_ = unpack(path);
  } else if (memory == Memory::kSmall && file_->size() <= kMostHeld) {
    read(0, static_cast<std::size_t>(file_->size()), held_);
  } else {
    return;
  }
  file_.reset();
}

std::string_view TextFile::read(std::uint64_t offset, std::size_t count, std::string& buffer) const {
  if (!file_) return std::string_view(held_).substr(static_cast<std::size_t>(offset), count);
  buffer.resize(count);
  if (file_->read_at(offset, buffer.data(), count) != count)
    throw Corrupt(str(path_, " has become shorter while it was read; do not change a file while it is read"));
  return buffer;
}

}  // namespace paceline::io
