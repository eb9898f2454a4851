#include "file_bytes.h"

#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "settings.h"

namespace paceline {
namespace remote {
namespace {

[[noreturn]] void fail(const char* verb, const std::string& what) {
  throw IoError(str("cannot ", verb, ' ', what, ": ", std::generic_category().message(errno)));
}

}  // namespace

void write_at(int file, std::uint64_t offset, std::string_view bytes, const std::string& what) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write a copy of", what);
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

std::string read_at(int file, std::uint64_t offset, std::size_t bytes, const std::string& what) {
  std::string text(bytes, '\0');
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(file, text.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = EIO;  // shorter than it was
    if (got <= 0) fail("read what goes to", what);
    done += static_cast<std::size_t>(got);
  }
  return text;
}

void empty_file(int file, const std::string& what) {
  if (::ftruncate(file, 0) != 0) fail("write a copy of", what);
}

}  // namespace remote

int detail::unnamed_file() {
  const std::string cache = remote::variable("PACELINE_CACHE");
  std::error_code error;
  if (!cache.empty()) std::filesystem::create_directories(cache, error);
  const std::string folder = cache.empty() ? std::filesystem::temp_directory_path(error).string() : cache;
  int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  // Some file systems know no files without a name.
  std::string name = folder + "/paceline-XXXXXX";
  file = ::mkostemp(name.data(), O_CLOEXEC);
  if (file < 0)
    throw IoError(str("cannot create a file in ", folder, ": ", std::generic_category().message(errno),
                      "; PACELINE_CACHE names a folder for files of other hosts"));
  ::unlink(name.c_str());
  return file;
}

}  // namespace paceline
