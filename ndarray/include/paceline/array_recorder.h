#pragma once
// How an array tells the Recorder of the calling thread (<paceline/recorder.h>) what it does without an operator.

#include <utility>

namespace paceline {
class NDArray;
}

namespace paceline::detail {

class ArrayRecorder {
 public:
  // Called instead of to.copy_from(source, priority) and array.fill(value), and does their work.
  virtual void copy(const NDArray& source, const NDArray& to, int priority) = 0;
  virtual void fill(const NDArray& array, double value) = 0;

 protected:
  ~ArrayRecorder() = default;
};

// The one of the calling thread; null while nothing is recorded. RecordingScope sets it.
inline ArrayRecorder*& array_recorder() {
  thread_local ArrayRecorder* recorder = nullptr;
  return recorder;
}

// While it lives, arrays of this thread tell nobody.
class Unrecorded {
 public:
  Unrecorded() : before_(std::exchange(array_recorder(), nullptr)) {}
  ~Unrecorded() { array_recorder() = before_; }
  Unrecorded(const Unrecorded&) = delete;
  Unrecorded& operator=(const Unrecorded&) = delete;

 private:
  ArrayRecorder* const before_;
};

}  // namespace paceline::detail
