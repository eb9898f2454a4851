#pragma once
// Locks of open files between processes. The end of a process releases its locks, whatever ended it.

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

namespace paceline::detail {

// Locks an open file with LOCK_SH or LOCK_EX, and waits for nobody. False with EWOULDBLOCK in errno: somebody else has
// the lock. False with another errno: the file system has no locks.
inline bool try_lock_file(int file, int kind) {
  while (::flock(file, kind | LOCK_NB) != 0)
    if (errno != EINTR) return false;
  return true;
}

// Is this open file still the one of that name? A file that lost its name locks nothing.
inline bool is_still(const std::string& path, int file) {
  struct stat there = {}, here = {};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(file, &here) == 0 && there.st_ino == here.st_ino &&
         there.st_dev == here.st_dev;
}

}  // namespace paceline::detail
