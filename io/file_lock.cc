#include "file_lock.h"

#include <fcntl.h>
#include <paceline/detail/lock_file.h>

#include <cerrno>

#include "file.h"

namespace paceline::io {
namespace {

detail::Descriptor opened(const std::string& path) {
  detail::Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (file.number() < 0) throw_io_error("open", path, errno);
  return file;
}

}  // namespace

std::optional<FileLock> FileLock::attempt(const std::string& path, Kind kind) {
  for (;;) {
    FileLock lock(path, opened(path));
    if (!lock.set(kind)) return {};
    if (detail::is_still(path, lock.file_.number())) return lock;
  }
}

bool FileLock::share() { return set(kShared); }

bool FileLock::set(Kind kind) {
  if (detail::try_lock_file(file_.number(), kind == kShared ? LOCK_SH : LOCK_EX)) return true;
  if (errno != EWOULDBLOCK) throw_io_error("lock", path_, errno);
  return false;
}

}  // namespace paceline::io
