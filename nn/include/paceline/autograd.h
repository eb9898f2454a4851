#pragma once
// Reverse-mode differentiation: a Tape records the operators that run while it is alive on this thread and computes
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

class Tape final : public Recorder {
 public:
  // Becomes the recorder of this thread until stop() or destruction; tapes nest.
  Tape();
  ~Tape() override;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Gradients with respect to `value` go into `gradient` (same shape and type), which stays the caller's. A weight that
  // the loss does not depend on gets zeros.
  void watch(const NDArray& value, const NDArray& gradient);
  // The same for a table whose gradient may be row-sparse: read it with sparse_gradient() after backward(), which does
  // not add to that of an earlier one.
  void watch_sparse(const NDArray& value);
  Gradient sparse_gradient(const NDArray& value) const;

  // Records nothing more; calls backward() can still be made.
  void stop();

  // Starts from d loss / d loss = 1 and fills the watched gradients, or adds to them (gradient accumulation).
  // Asynchronous. The record is used up. Throws InvalidArgument when the loss does not depend on anything watched, or
  // when an array that a gradient needs was written in place after it was recorded (named with its operator).
  void backward(const NDArray& loss, bool accumulate = false);

  bool wants(const OpDef& op, const std::vector<NDArray>& inputs) const override;
  bool follows_memory_of(const NDArray& array) const override;
  void record(OpCall call, const std::vector<NDArray>& inputs, const std::vector<NDArray>& outputs) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Scales gradients (floating types, on any devices) in place, where their norm as one vector is above `max_norm`, to
// that norm, by max_norm / (norm + 1e-6), and returns the norm they had: one float64 element on the first one's device.
// Asynchronous; records nothing. Norms that are not finite make gradients that are not. Throws InvalidArgument for no
// gradients and a max_norm that is not above 0. Pascanu et al. 2013, "On the difficulty of training recurrent neural
// networks".
NDArray clip_global_norm(const std::vector<NDArray>& gradients, double max_norm);
// That norm alone; finite where all of them are.
NDArray global_norm(const std::vector<NDArray>& gradients);

}  // namespace paceline
