#pragma once
// Reverse-mode differentiation: a Tape records what happens to arrays on this thread, and computes gradients
// afterwards.
//
//   Tape tape;
//   tape.watch(weight, gradient);
//   NDArray loss = mean(square(dense(x, weight)));
//   tape.backward(loss);              // gradient now holds d loss / d weight

#include <paceline/recorder.h>

#include <memory>
#include <vector>

namespace paceline {

// How backward() works.
struct BackwardOptions {
  bool accumulate = false;  // adds to the watched gradients instead of overwriting them
  bool keep = false;        // keeps the record for further calls of backward()
};

// Follows operators, views, and the copies and writes of NDArray's methods. A write in place through any view is
// differentiated like the rest. Where a gradient needs what was overwritten, backward() names the operator. One thread
// uses a tape.
class Tape final : public Recorder {
 public:
  // Becomes the recorder of this thread until stop(), backward() or destruction; that call must be made on this thread.
  // Tapes nest. What an inner tape computes as gradients are constants to an outer one: there are no gradients of
  // gradients.
  Tape();
  ~Tape() override;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // The gradient with respect to `value` goes into `gradient`, an array of the caller's with the same shape and type.
  // It gets zeros where the loss does not depend on `value`. `value` may be computed from watched arrays, whose
  // gradients do not change by that, and may be watched already: then each `gradient` is filled. While the tape
  // records, nobody may write into `value`.
  void watch(const NDArray& value, const NDArray& gradient);
  // Watches a table whose gradient may be row-sparse. Read that by sparse_gradient() after backward(), which does not
  // add to an earlier one.
  void watch_sparse(const NDArray& value);
  Gradient sparse_gradient(const NDArray& value) const;

  // Records nothing more. backward() may follow.
  void stop();

  // Fills the watched gradients, from d loss / d loss = 1. Asynchronous. The record is used up unless options.keep.
  // Throws InvalidArgument where the loss has several elements, depends on nothing that is watched, or the record is
  // used up. Throws it also where an array that a gradient needs was written in place after it was recorded: the
  // message names the operator.
  void backward(const NDArray& loss, BackwardOptions options = {});
  // The same from `gradient`, which is the gradient with respect to `result` and has its shape.
  void backward(const NDArray& result, const NDArray& gradient, BackwardOptions options = {});

  // What operators and arrays report (recorder.h); not for users.
  Seen see(const OpDef& op, const std::vector<NDArray>& inputs, const NDArray* target) override;
  void record(OpCall call, Seen seen, const std::vector<NDArray>& inputs, const std::vector<NDArray>& outputs) override;
  void wrote_constants(const NDArray& array) override;
  void copy(const NDArray& source, const NDArray& to, int priority) override;
  void fill(const NDArray& array, double value) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// x as a constant: what is computed from the result, or from views of it, has no gradient with respect to x. The result
// shares the memory of x. While a Tape records, it refuses to write there what it follows.
NDArray stop_gradient(const NDArray& x);

// Limits the norm of all gradients as one vector (Pascanu et al. 2013, "On the difficulty of training recurrent neural
// networks"). Where it is above `max_norm`, they are scaled in place by max_norm / (norm + 1e-6). Returns the norm that
// they had: one float64 element on the first gradient's device. Gradients may be of any floating type, on any devices.
// A norm that is not finite makes gradients that are not. Asynchronous; records nothing. Throws InvalidArgument for no
// gradients, and for a `max_norm` that is not above 0.
NDArray clip_global_norm(const std::vector<NDArray>& gradients, double max_norm);
// The norm of all gradients as one vector, as above. It is finite where all of them are.
NDArray global_norm(const std::vector<NDArray>& gradients);

}  // namespace paceline
