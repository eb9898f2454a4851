#pragma once
// The mathematics of prelu(), for host and device.

#include <paceline/host_device.h>

namespace paceline::functors {

struct Prelu {
  template <class T>
  PACELINE_HOST_DEVICE T operator()(T x, T slope) const {
    return x > T(0) ? x : x * slope;
  }
};

}  // namespace paceline::functors
