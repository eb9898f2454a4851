#include <paceline/crc32c.h>
#include <paceline/detail/atomic_file.h>
#include <paceline/detail/descriptor.h>
#include <paceline/detail/host_name.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace paceline::detail {
namespace {

constexpr std::size_t kBuffer = std::size_t{64} << 10;

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// The temporary files of a path on this host, in the order in which they are tried.
std::string temporary_of(const std::string& path, unsigned number) {
  char suffix[32];
  std::snprintf(suffix, sizeof suffix, ".tmp%08x_%u", crc32c(host_name()), number);
  return path + suffix;
}

bool is_still(const std::string& path, int file) {
  struct stat there = {}, here = {};
  return ::lstat(path.c_str(), &there) == 0 && ::fstat(file, &here) == 0 && there.st_ino == here.st_ino &&
         there.st_dev == here.st_dev;
}

bool lock(int file) {
  while (::flock(file, LOCK_EX | LOCK_NB) != 0)
    if (errno != EINTR) return false;
  return true;
}

// Locks a new temporary file. False: another process took it for one that was left, and removes it. A file system may
// have no locks; there remove_left() removes nothing.
bool take(const std::string& temporary, int file) {
  return lock(file) ? is_still(temporary, file) : errno != EWOULDBLOCK;
}

// Removes a temporary file that a killed process left: it is there, and nobody has locked it.
bool remove_left(const std::string& temporary) {
  const Descriptor file(::open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return file.number() >= 0 && lock(file.number()) && is_still(temporary, file.number()) &&
         ::unlink(temporary.c_str()) == 0;
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  buffer_.reserve(kBuffer);
  if (is_remote(path_)) {
    file_ = unnamed_file();
    return;
  }
  struct stat old {};
  const bool exists = ::stat(path_.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) throw IoError("cannot write " + path_ + ": it is not a regular file");
  unsigned number = 0;
  while (file_ < 0) {
    temporary_ = temporary_of(path_, number);
    Descriptor file(
        ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, exists ? old.st_mode & 0777 : 0666));
    if (file.number() < 0 && errno != EEXIST) fail("create");
    if (file.number() >= 0 && take(temporary_, file.number()))
      file_ = file.release();
    else if (file.number() < 0 && !remove_left(temporary_))
      ++number;
  }
  while (remove_left(temporary_of(path_, ++number))) {
  }
  if (exists) ::fchmod(file_, old.st_mode & 0777);  // open() heeds the umask
}

// The lock is held until the temporary file has lost its name: somebody else may have the name then.
AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  if (file_ >= 0) ::close(file_);
}

void AtomicFile::fail(const char* what) const {
  throw IoError(str("cannot ", what, " ", temporary_.empty() ? "a temporary file" : temporary_, " to replace ", path_,
                    ": ", std::generic_category().message(errno)));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (buffer_.size() + bytes > kBuffer) flush();
  if (bytes >= kBuffer) return write_through(static_cast<const char*>(data), bytes);
  buffer_.append(static_cast<const char*>(data), bytes);
}

void AtomicFile::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::write_through(const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::write(file_, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write");
    data += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::overwrite(std::uint64_t offset, std::string_view bytes) {
  flush();
  const off_t end = ::lseek(file_, 0, SEEK_CUR);
  if (end < 0 || ::lseek(file_, static_cast<off_t>(offset), SEEK_SET) < 0) fail("write");
  write_through(bytes.data(), bytes.size());
  if (::lseek(file_, end, SEEK_SET) < 0) fail("write");
}

void AtomicFile::commit() {
  flush();
  if (is_remote(path_)) {
    const off_t end = ::lseek(file_, 0, SEEK_CUR);
    if (end < 0) fail("write");
    return upload(file_, static_cast<std::uint64_t>(end), path_);
  }
  if (::fsync(file_) != 0) fail("write");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename");
  temporary_.clear();
  ::close(std::exchange(file_, -1));
  // Some file systems cannot sync a folder; the file itself is safe either way.
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

void AtomicFile::write_text(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace paceline::detail
