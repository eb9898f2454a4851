#include <paceline/crc32c.h>
#include <paceline/detail/atomic_file.h>
#include <paceline/detail/descriptor.h>
#include <paceline/detail/host_name.h>
#include <paceline/detail/lock_file.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>
#include <utility>

namespace paceline::detail {
namespace {

constexpr std::size_t kBuffer = std::size_t{64} << 10;
constexpr int kTries = 10;         // so many new temporary files may lose their name at once
constexpr unsigned kCleaned = 16;  // at least so many numbers are looked at for files that were left
constexpr mode_t kOwn = 0600;      // remove_left() opens a file for both, as locks of NFS need it

// What the temporary files of a path begin with, whose locks this host knows. Hosts may have equal names, so the name
// of the boot counts too, where the system has one. Containers of a host differ by their own names.
std::string temporary_names(const std::string& path) {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char suffix[32];
  std::snprintf(suffix, sizeof suffix, ".tmp%08x_", crc32c(host_name() + '\n' + boot));
  return path + suffix;
}

// Locks a new temporary file. False: another process took it for one that was left, and removes it. A file system may
// have no locks; there remove_left() removes nothing.
bool take(const std::string& temporary, int file) {
  return try_lock_file(file, LOCK_EX) ? is_still(temporary, file) : errno != EWOULDBLOCK;
}

// Removes a temporary file that a killed process left: it is there, and nobody has locked it. That of another user
// stays, as a rule: it cannot be opened.
bool remove_left(const std::string& temporary) {
  const Descriptor file(::open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return file.number() >= 0 && try_lock_file(file.number(), LOCK_EX) && is_still(temporary, file.number()) &&
         ::unlink(temporary.c_str()) == 0;
}

}  // namespace

void sync_folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const Descriptor folder(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.number() >= 0) ::fsync(folder.number());
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  buffer_.reserve(kBuffer);
  if (is_remote(path_)) {
    file_ = unnamed_file();
    return;
  }
  struct stat old {};
  const bool exists = ::stat(path_.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) throw IoError("cannot write " + path_ + ": it is not a regular file");
  const std::string names = temporary_names(path_);
  unsigned number = 0;
  for (int lost = 0; file_ < 0;) {
    temporary_ = str(names, number);
    Descriptor file(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                           exists ? (old.st_mode & 0777) | kOwn : 0666));
    if (file.number() >= 0 && take(temporary_, file.number())) {
      file_ = file.release();
    } else if (file.number() >= 0) {
      if (++lost == kTries)
        throw IoError(str("cannot create ", temporary_, " to replace ", path_, ": ", kTries,
                          " new files lost their name at once; other processes take them, or the inode numbers of the "
                          "file system are not steady; write to another folder"));
    } else if (errno != EEXIST) {
      fail("create");
    } else if (!remove_left(temporary_)) {
      ++number;
    }
  }
  for (unsigned other = number + 1; other < std::max(kCleaned, number + 2); ++other) remove_left(str(names, other));
  struct stat created {};
  if (::fstat(file_, &created) != 0) created.st_mode = 0666;
  mode_ = (exists ? old.st_mode : created.st_mode) & 0777;
  if ((created.st_mode & kOwn) != kOwn) ::fchmod(file_, (created.st_mode & 0777) | kOwn);  // open() heeds the umask
}

// The lock is held until the temporary file has lost its name: somebody else may have the name then.
AtomicFile::~AtomicFile() {
  if (!temporary_.empty() && is_still(temporary_, file_)) ::unlink(temporary_.c_str());
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
  // Where the processes do not see each other's locks, the name may be that of somebody else's file by now.
  if (!is_still(temporary_, file_))
    throw IoError(str("cannot rename ", temporary_, " to replace ", path_,
                      ": another process took the temporary file; let one "
                      "process at a time write this path"));
  ::fchmod(file_, mode_);  // not before fsync(), which may take long: a file that is left needs kOwn
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename");
  temporary_.clear();
  ::close(std::exchange(file_, -1));
  sync_folder_of(path_);
}

void AtomicFile::write_text(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace paceline::detail
