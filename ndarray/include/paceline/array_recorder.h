#pragma once
// How an array tells the Recorder of the calling thread (<paceline/recorder.h>) of copies and fills, which are no
// operators. For the library; users see Recorder.

#include <paceline/engine.h>

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

// What a thread records. RecordingScope sets it.
struct ArrayRecording {
  ArrayRecorder* recorder = nullptr;
  const void* task = nullptr;  // in which recording was begun
};
inline ArrayRecording& array_recording() {
  thread_local ArrayRecording recording;
  return recording;
}

// The one of the calling thread; null while nothing is recorded, and in a task that the recording thread runs itself.
inline ArrayRecorder* array_recorder() {
  const ArrayRecording& recording = array_recording();
  return recording.recorder && recording.task == current_task() ? recording.recorder : nullptr;
}

// While it lives, arrays of this thread tell nobody.
class Unrecorded {
 public:
  Unrecorded() : before_(std::exchange(array_recording().recorder, nullptr)) {}
  ~Unrecorded() { array_recording().recorder = before_; }
  Unrecorded(const Unrecorded&) = delete;
  Unrecorded& operator=(const Unrecorded&) = delete;

 private:
  ArrayRecorder* const before_;
};

}  // namespace paceline::detail
