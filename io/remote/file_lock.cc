#include "file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "file.h"

namespace paceline::io {
namespace {

int opened(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) throw_io_error("open", path, errno);
  return descriptor;
}

// A file that was removed meanwhile locks nothing.
bool is_still(const std::string& path, int descriptor) {
  struct stat there = {}, here = {};
  return stat(path.c_str(), &there) == 0 && fstat(descriptor, &here) == 0 && there.st_ino == here.st_ino &&
         there.st_dev == here.st_dev;
}

}  // namespace

std::optional<FileLock> FileLock::attempt(const std::string& path, Kind kind) {
  for (;;) {
    FileLock lock(opened(path));
    while (flock(lock.descriptor_, (kind == kShared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return {};
      if (errno != EINTR) throw_io_error("lock", path, errno);
    }
    if (is_still(path, lock.descriptor_)) return lock;
  }
}

FileLock FileLock::wait(const std::string& path) {
  FileLock lock(opened(path));
  while (flock(lock.descriptor_, LOCK_EX) != 0)
    if (errno != EINTR) throw_io_error("lock", path, errno);
  return lock;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace paceline::io
