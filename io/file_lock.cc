#include "file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "file.h"

namespace paceline::io {
namespace {

detail::Descriptor opened(const std::string& path) {
  detail::Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (file.number() < 0) throw_io_error("open", path, errno);
  return file;
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
    FileLock lock(path, opened(path));
    if (!lock.set(kind)) return {};
    if (is_still(path, lock.file_.number())) return lock;
  }
}

bool FileLock::share() { return set(kShared); }

bool FileLock::set(Kind kind) {
  while (flock(file_.number(), (kind == kShared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw_io_error("lock", path_, errno);
  }
  return true;
}

}  // namespace paceline::io
