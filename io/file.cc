#include "file.h"

#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace paceline::io {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

}  // namespace

void throw_io_error(const char* what, const std::string& path, int error) {
  throw IoError(
      str("cannot ", what, " ", path, " on host ", host_name(), ": ", std::generic_category().message(error)));
}

InputFile::InputFile(const std::string& path)
    : path_(redacted(path)),
      descriptor_(is_remote(path) ? detail::download_unnamed(path) : open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw_io_error("open", path, errno);
  struct stat status = {};
  int error = fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (!error && S_ISDIR(status.st_mode)) error = EISDIR;
  if (!error && !S_ISREG(status.st_mode)) error = ESPIPE;  // a pipe has no size, and would be taken for empty
  if (error) {
    close(descriptor_);
    throw_io_error("read", path, error);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() { close(descriptor_); }

std::size_t InputFile::read_at(std::uint64_t offset, void* buffer, std::size_t count) const {
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got =
        pread(descriptor_, static_cast<char*>(buffer) + done, count - done, static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_io_error("read", path_, errno);
    }
    done += static_cast<std::size_t>(got);
  }
  return done;
}

OutputFile::OutputFile(const std::string& path)
    : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) throw_io_error("create", path, errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::append(std::string_view bytes) {
  buffer_.append(bytes);
  size_ += bytes.size();
  if (buffer_.size() >= kBufferBytes) flush();
}

void OutputFile::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t put = ::write(descriptor_, buffer_.data() + done, buffer_.size() - done);
    if (put < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      buffer_.erase(0, done);  // another attempt goes on behind them
      throw_io_error("write", path_, error);
    }
    done += static_cast<std::size_t>(put);
  }
  buffer_.clear();
}

void OutputFile::close(Sync sync) {
  if (descriptor_ < 0 && buffer_.empty()) return;
  flush();
  if (sync == kSync && fsync(descriptor_) != 0 && errno != EINVAL) throw_io_error("write", path_, errno);
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0) throw_io_error("close", path_, errno);
}

std::string read_file(const std::string& path) {
  InputFile file(path);
  std::string text(file.size(), '\0');
  text.resize(file.read_at(0, text.data(), text.size()));
  return text;
}

std::string read_text(const std::string& path) {
  std::string text = read_file(path);
  if (text.starts_with("\x1f\x8b"))
    throw Corrupt(str(redacted(path), " is compressed by gzip, which is not read here; unpack it with gunzip first"));
  return text;
}

std::string in_quotes(std::string_view bytes) {
  constexpr std::size_t kMost = 40;
  std::string text = "'";
  for (const char c : bytes.substr(0, kMost)) {
    char code[5];
    std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    text += c >= ' ' && c <= '~' ? std::string(1, c) : code;
  }
  return text + (bytes.size() > kMost ? "...'" : "'");
}

bool is_utf8(std::string_view text) {
  constexpr std::uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};  // that needs so many bytes after the first
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<std::uint8_t>(text[at++]);
    const std::size_t more = first < 0x80         ? 0
                             : first >> 5 == 0x6  ? 1
                             : first >> 4 == 0xe  ? 2
                             : first >> 3 == 0x1e ? 3
                                                  : 4;
    if (more == 4 || text.size() - at < more) return false;
    std::uint32_t code = more == 0 ? first : first & (0x3fu >> more);
    for (const char next : text.substr(at, more)) {
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (static_cast<std::uint8_t>(next) & 0x3f);
    }
    if (code < kSmallest[more] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    at += more;
  }
  return true;
}

}  // namespace paceline::io
