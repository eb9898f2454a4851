#pragma once
// Sees each call of an operator; autograd (nn::Tape) is one. The current recorder is thread-local.

#include <paceline/op.h>

namespace paceline {

class Recorder {
 public:
  virtual ~Recorder() = default;

  // Does the recorder care about a call with these inputs? Asked before the call, so that nothing is saved in vain.
  virtual bool wants(const OpDef& op, const std::vector<NDArray>& inputs) const = 0;

  // Is any view of this array's memory followed?
  virtual bool follows_memory_of(const NDArray&) const { return false; }

  // `call` holds the saved arrays only; `inputs` and `outputs` are all of them (for identity). Called after the launch.
  virtual void record(OpCall call, const std::vector<NDArray>& inputs, const std::vector<NDArray>& outputs) = 0;

  // The recorder of the calling thread, or nullptr.
  static Recorder* current();
};

// Makes `recorder` (may be nullptr: records nothing) the current one of this thread while alive.
class RecordingScope {
 public:
  explicit RecordingScope(Recorder* recorder);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

 private:
  Recorder* previous_;
};

}  // namespace paceline
