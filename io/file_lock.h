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

 private:
  explicit FileLock(detail::Descriptor file) : file_(std::move(file)) {}

  detail::Descriptor file_;
};

}  // namespace paceline::io
