#pragma once
// What a failed task leaves behind: the kind of its error and a message that names the task.

#include <paceline/mutex.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace paceline::detail {

struct Failure {
  enum class Kind : std::uint8_t {
    kError,
    kInvalidArgument,
    kNotAvailable,
    kOutOfMemory,
    kDeviceError,
    kNetworkError,
    kTimeout,
    kIoError,
    kCorrupt,
  };

  std::uint64_t task;  // in push order
  Kind kind;
  std::string message;
  std::atomic<bool> thrown = false;  // by a wait, so that wait_all need not repeat it
};
using FailurePointer = std::shared_ptr<Failure>;

FailurePointer make_failure(const char* task_name, std::uint64_t task, const std::exception_ptr& error);

// A fresh exception each time: waiting threads share nothing.
[[noreturn]] void throw_failure(Failure& failure);

// The failures since the last take_first() or report(). It keeps 1024 at most and drops later ones.
class FailureLog {
 public:
  void add(FailurePointer failure) PACELINE_EXCLUDES(mutex_);
  // Forgets all failures. Returns the earliest in push order that no wait has thrown, or null.
  FailurePointer take_first() PACELINE_EXCLUDES(mutex_);
  // Forgets all; writes those that no wait has thrown to the log.
  void report() PACELINE_EXCLUDES(mutex_);

 private:
  std::vector<FailurePointer> take_all() PACELINE_EXCLUDES(mutex_);

  Mutex mutex_;
  std::vector<FailurePointer> failures_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline::detail
