#pragma once
// Which places a resampled place is made of, for host and device.

#include "upsample/upsample.h"

#include <paceline/host_device.h>

#include <algorithm>
#include <array>

namespace paceline {

// Where a place comes from along one axis: one place, or two with their weights.
template <class A>
struct UpsampleSource {
  std::int64_t place[2];
  A weight[2];
  int count;
};

// One axis of x and of the result.
struct UpsampleAxis {
  std::int64_t from = 1, to = 1;
  bool linear = false;

  template <class A>
  PACELINE_HOST_DEVICE UpsampleSource<A> source(std::int64_t i) const {
    if (!linear) return {{i * from / to, 0}, {A(1), A(0)}, 1};
    const double ratio = static_cast<double>(from) / static_cast<double>(to);
    const double at = std::max(0.0, (static_cast<double>(i) + 0.5) * ratio - 0.5);
    const std::int64_t low = std::min(static_cast<std::int64_t>(at), from - 1), high = std::min(low + 1, from - 1);
    const double share = std::min(1.0, at - static_cast<double>(low));
    return {{low, high}, {static_cast<A>(1 - share), static_cast<A>(share)}, 2};
  }
  // The places of the result that come from a place of x are in [first_from, end_from), where not all of them do.
  PACELINE_HOST_DEVICE std::int64_t first_from(std::int64_t place) const {
    if (!linear) return (place * to + from - 1) / from;
    const auto least = static_cast<std::int64_t>((static_cast<double>(place) - 0.5) * step()) - 2;
    return place == 0 ? 0 : std::clamp<std::int64_t>(least, 0, to);
  }
  PACELINE_HOST_DEVICE std::int64_t end_from(std::int64_t place) const {
    if (!linear) return ((place + 1) * to + from - 1) / from;
    const auto most = static_cast<std::int64_t>((static_cast<double>(place) + 1.5) * step()) + 2;
    return place == from - 1 ? to : std::clamp<std::int64_t>(most, 0, to);
  }
  // How much of a place of x place i of the result has.
  template <class A>
  PACELINE_HOST_DEVICE A weight(std::int64_t i, std::int64_t place) const {
    const UpsampleSource<A> found = source<A>(i);
    A sum = A(0);
    for (int k = 0; k < found.count; ++k) sum += found.place[k] == place ? found.weight[k] : A(0);
    return sum;
  }

  PACELINE_HOST_DEVICE double step() const { return static_cast<double>(to) / static_cast<double>(from); }
};

// Always three axes: those that x lacks come first and have one place.
struct UpsampleGrid {
  std::array<UpsampleAxis, 3> axes = {};

  PACELINE_HOST_DEVICE std::int64_t input_places() const { return axes[0].from * axes[1].from * axes[2].from; }
  PACELINE_HOST_DEVICE std::int64_t output_places() const { return axes[0].to * axes[1].to * axes[2].to; }
};

// Throws InvalidArgument naming `name` when the attributes do not fit x's shape.
UpsampleGrid make_upsample_grid(const char* name, const Shape& x, const UpsampleAttributes& how);

// What the gradient needs besides: the shape that was resampled.
struct UpsampleBackwardAttributes : UpsampleAttributes {
  Shape x = {};
};

}  // namespace paceline
