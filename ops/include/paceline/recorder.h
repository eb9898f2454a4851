#pragma once
// Sees each call of an operator, and each copy and fill of an array; autograd (Tape) is one. The current recorder is
// thread-local.

#include <paceline/array_recorder.h>
#include <paceline/op.h>

namespace paceline {

class Recorder : public detail::ArrayRecorder {
 public:
  virtual ~Recorder() = default;

  // What the recorder knows about the arrays of a call before the call runs.
  struct Seen {
    struct Read {
      std::size_t input;
      std::size_t value;  // the recorder's number of a value that the input shows
    };
    std::vector<Read> reads = {};
    std::vector<std::size_t> overwritten = {};  // values that the call is going to write into
    std::vector<std::uint64_t> writes = {};     // to the memory of each input, so far

    bool is_none() const { return reads.empty() && overwritten.empty(); }
  };
  // Asked before a call, so that nothing is saved in vain. `target`: what the call overwrites, where it works in place;
  // throws InvalidArgument where the recorder cannot allow that.
  virtual Seen see(const OpDef& op, const std::vector<NDArray>& inputs, const NDArray* target) = 0;

  // After the launch of a call that the recorder saw something of. `call` holds the saved arrays only; `inputs` and
  // `outputs` are all of them.
  virtual void record(OpCall call, Seen seen, const std::vector<NDArray>& inputs,
                      const std::vector<NDArray>& outputs) = 0;

  // An operator wrote into one of its inputs what has no gradient (OpDef::mutated_input()).
  virtual void wrote_constants(const NDArray&) {}

  void copy(const NDArray& source, const NDArray& to, int priority) override;
  void fill(const NDArray& array, double value) override;

  // The recorder of the calling thread, or nullptr.
  static Recorder* current();
};

// Makes `recorder` (may be nullptr: records nothing) the current one of this thread while alive, but not of tasks that
// the thread runs meanwhile. Scopes of a thread may end in any order; the current recorder is that of the latest one. A
// scope that ends on another thread ends the process.
class RecordingScope {
 public:
  explicit RecordingScope(Recorder* recorder);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

  bool is_of_this_thread() const;

 private:
  friend Recorder;

  Recorder* const recorder_;
  const void* const task_;   // in which it was begun
  RecordingScope*& latest_;  // of the thread
  RecordingScope* previous_;
};

}  // namespace paceline
