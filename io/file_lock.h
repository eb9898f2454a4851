#pragma once
// Locks between the processes of a host. The end of a process releases its locks, whatever ended it.

#include <paceline/detail/descriptor.h>

#include <optional>
#include <string>
#include <utility>

namespace paceline::io {

class FileLock {
 public:
  enum Kind { kShared, kAlone };
  // Creates the file where it is missing. None: somebody has the lock. Throws IoError.
  static std::optional<FileLock> attempt(const std::string& path, Kind kind);
  // Makes a lock of kAlone one of kShared. The system lets go of the one before it takes the other. False: somebody
  // took it in between, and this one is gone. Throws IoError.
  bool share();

 private:
  FileLock(std::string path, detail::Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  bool set(Kind kind);

  std::string path_;
  detail::Descriptor file_;
};

}  // namespace paceline::io
