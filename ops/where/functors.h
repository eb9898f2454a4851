#pragma once
// The mathematics of where(), for host and device.

#include <paceline/host_device.h>

namespace paceline::functors {

struct Choose {
  template <class T>
  PACELINE_HOST_DEVICE T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

}  // namespace paceline::functors
