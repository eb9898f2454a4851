#pragma once
// The SGD family as functions of one element. Each returns the value that is subtracted from the weight.

#include <paceline/host_device.h>
#include <paceline/optimizer.h>

namespace paceline {

// w -= lr * g
struct SgdRule {
  static constexpr int kSlots = 0;
  double rate(const UpdateStep& step) const { return step.learning_rate; }
  template <class T>
  struct Bound {
    PACELINE_HOST_DEVICE T operator()(T gradient, T*, T rate) const { return rate * gradient; }
  };
  template <class T>
  Bound<T> bind() const {
    return {};
  }
};

// mom = momentum * mom + g; w -= lr * mom, or, with nesterov, w -= lr * (g + momentum * mom)
template <bool kNesterov>
struct MomentumRule {
  static constexpr int kSlots = 1;
  double momentum;
  double rate(const UpdateStep& step) const { return step.learning_rate; }
  template <class T>
  struct Bound {
    T momentum;
    PACELINE_HOST_DEVICE T operator()(T gradient, T* slots, T rate) const {
      slots[0] = momentum * slots[0] + gradient;
      return rate * (kNesterov ? gradient + momentum * slots[0] : slots[0]);
    }
  };
  template <class T>
  Bound<T> bind() const {
    return {static_cast<T>(momentum)};
  }
};

}  // namespace paceline
