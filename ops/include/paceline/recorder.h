#pragma once
// Recorders see each call of an operator, and each copy and fill of an array. A Tape is one.

#include <paceline/array_recorder.h>
#include <paceline/op.h>

namespace paceline {

// What a thread's calls are reported to while a RecordingScope says so. The thread that records calls it.
class Recorder : public detail::ArrayRecorder {
 public:
  virtual ~Recorder() = default;

  // What the recorder knows about the arrays of a call before the call runs.
  struct Seen {
    // An input that shows a recorded value.
    struct Read {
      std::size_t input;  // its index
      std::size_t value;  // the recorder's number of the value
    };
    std::vector<Read> reads = {};               // inputs that show recorded values
    std::vector<std::size_t> overwritten = {};  // values that the call is going to write into
    std::vector<std::uint64_t> writes = {};     // the number of writes so far to the memory of each input

    // Has the call nothing to do with what is recorded?
    bool is_none() const { return reads.empty() && overwritten.empty(); }
  };
  // Asked before a call, so that nothing is saved in vain. `target` is what a call in place overwrites, else null.
  // Throws InvalidArgument where the recorder cannot allow that.
  virtual Seen see(const OpDef& op, const std::vector<NDArray>& inputs, const NDArray* target) = 0;

  // Called after the launch, unless Seen::is_none(). `call` holds the saved arrays only; `inputs` and `outputs` are all
  // of them.
  virtual void record(OpCall call, Seen seen, const std::vector<NDArray>& inputs,
                      const std::vector<NDArray>& outputs) = 0;

  // An operator wrote into an input something without a gradient (OpDef::mutated_input()).
  virtual void wrote_constants(const NDArray&) {}

  // Called instead of NDArray::copy_from() and NDArray::fill(), and do their work.
  void copy(const NDArray& source, const NDArray& to, int priority) override;
  void fill(const NDArray& array, double value) override;

  // The recorder of the calling thread, or nullptr.
  static Recorder* current();
};

// Makes a recorder the current one of this thread while the scope lives, but not of tasks that the thread runs
// meanwhile. Scopes of a thread may end in any order; the latest one counts. A scope that ends on another thread ends
// the process.
class RecordingScope {
 public:
  // With nullptr nothing is recorded.
  explicit RecordingScope(Recorder* recorder);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

  bool is_of_this_thread() const;  // was it made on the calling thread?

 private:
  friend Recorder;

  Recorder* const recorder_;
  const void* const task_;   // in which it was begun
  RecordingScope*& latest_;  // of the thread
  RecordingScope* previous_;
};

}  // namespace paceline
