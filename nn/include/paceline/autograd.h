#pragma once
// Reverse-mode differentiation: a Tape records what happens to arrays while it is alive on this thread and computes
// gradients afterwards.
//
//   Tape tape;
//   tape.watch(weight, gradient);
//   NDArray loss = mean(square(dense(x, weight)));
//   tape.backward(loss);              // gradient now holds d loss / d weight

#include <paceline/recorder.h>

#include <memory>
#include <vector>

namespace paceline {

struct BackwardOptions {
  bool accumulate = false;  // adds to the watched gradients, instead of overwriting them
  bool keep = false;        // keeps the record, for further calls of backward()
};

// Follows operators, views, and the copies and writes of NDArray's methods. Writing in place through any view is
// differentiated like the rest; where a gradient needs what was overwritten, backward() names the operator.
class Tape final : public Recorder {
 public:
  // Becomes the recorder of this thread until stop(), backward() or destruction, the first of which must be called on
  // this thread; tapes nest.
  Tape();
  ~Tape() override;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Gradients with respect to `value` go into `gradient` (same shape and type), which stays the caller's. A weight that
  // the loss does not depend on gets zeros. `value` may be computed from watched arrays, whose gradients stay what they
  // are, or be watched already: each gets its gradient. While the tape records, nobody may write into `value`.
  void watch(const NDArray& value, const NDArray& gradient);
  // The same for a table whose gradient may be row-sparse: read it with sparse_gradient() after backward(), which does
  // not add to that of an earlier one.
  void watch_sparse(const NDArray& value);
  Gradient sparse_gradient(const NDArray& value) const;

  // Records nothing more; calls backward() can still be made.
  void stop();

  // Starts from d loss / d loss = 1, of one element, and fills the watched gradients. Asynchronous. The record is used
  // up unless options.keep. Throws InvalidArgument when the loss has several elements or does not depend on anything
  // watched, when the record is used up, or when an array that a gradient needs was written in place after it was
  // recorded (named with its operator).
  void backward(const NDArray& loss, BackwardOptions options = {});
  // Starts from `gradient`, the one with respect to `result`, of any shape.
  void backward(const NDArray& result, const NDArray& gradient, BackwardOptions options = {});

  Seen see(const OpDef& op, const std::vector<NDArray>& inputs, const NDArray* target) override;
  void record(OpCall call, Seen seen, const std::vector<NDArray>& inputs, const std::vector<NDArray>& outputs) override;
  void wrote_constants(const NDArray& array) override;
  void copy(const NDArray& source, const NDArray& to, int priority) override;
  void fill(const NDArray& array, double value) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The same elements as a constant: nothing that is computed from the result, or from views of it, has a gradient with
// respect to x. Shares the memory; while a Tape records, what it follows cannot be written there.
NDArray stop_gradient(const NDArray& x);

// Scales gradients (floating types, on any devices) in place, where their norm as one vector is above `max_norm`, to
// that norm, by max_norm / (norm + 1e-6), and returns the norm they had: one float64 element on the first one's device.
// Asynchronous; records nothing. Norms that are not finite make gradients that are not. Throws InvalidArgument for no
// gradients and a max_norm that is not above 0. Pascanu et al. 2013, "On the difficulty of training recurrent neural
// networks".
NDArray clip_global_norm(const std::vector<NDArray>& gradients, double max_norm);
// That norm alone; finite where all of them are.
NDArray global_norm(const std::vector<NDArray>& gradients);

}  // namespace paceline
