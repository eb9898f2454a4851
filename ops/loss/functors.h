#pragma once
// The mathematics of the losses, for host and device: the loss of one pair, and its slope by either of the two.

#include "loss/loss.h"
#include "shared/fast_math.h"
#include "unary/functors.h"

namespace paceline::functors {

struct SquaredLoss {
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T p, T t) const {
    return (p - t) * (p - t);
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_prediction(T p, T t) const {
    return T(2) * (p - t);
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_target(T p, T t) const {
    return T(2) * (t - p);
  }
};

struct AbsoluteLoss {
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T p, T t) const {
    return std::fabs(p - t);
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_prediction(T p, T t) const {
    return Sign()(p - t);
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_target(T p, T t) const {
    return Sign()(t - p);
  }
};

struct HuberLoss {
  using Attributes = HuberAttributes;
  Attributes attributes;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T p, T t) const {
    const T delta = T(attributes.delta), size = std::fabs(p - t);
    return size <= delta ? T(0.5) * size * size : delta * (size - T(0.5) * delta);
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_prediction(T p, T t) const {
    const T delta = T(attributes.delta), distance = p - t;
    return distance <= -delta ? -delta : distance >= delta ? delta : distance;
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_target(T p, T t) const {
    return -by_prediction(p, t);
  }
};

struct HingeLoss {
  static constexpr bool kFlat = true;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T p, T t) const {
    const T margin = T(1) - p * t;
    return margin < T(0) ? T(0) : margin;
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_prediction(T p, T t) const {
    return T(1) - p * t > T(0) ? -t : T(0);
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_target(T p, T t) const {
    return by_prediction(t, p);
  }
};

struct SigmoidCrossEntropy {
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T p, T t) const {
    return (T(1) - t) * p + Softplus()(-p);
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_prediction(T p, T t) const {
    return T(1) / (T(1) + fast_exp(-p)) - t;
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_target(T p, T) const {
    return -p;
  }
};

struct KlDivergence {
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T p, T t) const {
    return (t == T(0) ? T(0) : t * std::log(t)) - t * p;
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_prediction(T, T t) const {
    return -t;
  }
  template <class T>
  PACELINE_HOST_DEVICE T by_target(T p, T t) const {
    return std::log(t) + t / t - p;  // NaN, not -infinity, at 0: as PyTorch
  }
};

// (gradient, prediction, target) -> the gradient of either. Where a loss with a flat part is flat, even an infinite
// gradient ends.
template <class F, bool kTarget>
struct LossSlope {
  F f;
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T gradient, T p, T t) const {
    const T slope = kTarget ? f.by_target(p, t) : f.by_prediction(p, t);
    if constexpr (requires { F::kFlat; })
      return slope == T(0) ? T(0) : gradient * slope;
    else
      return gradient * slope;
  }
};

}  // namespace paceline::functors
