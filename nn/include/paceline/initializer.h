#pragma once
// How weights start. Random numbers are counter-based: the same seed and name give the same weights on every device.

#include <paceline/ndarray.h>

#include <cstdint>
#include <functional>

namespace paceline::nn {

// Fills a new weight; `seed` is derived from the network's seed and the parameter's name.
using Initializer = std::function<void(const NDArray& weight, std::uint64_t seed)>;

Initializer constant(double value);    // `value` everywhere
Initializer uniform(double scale);     // uniform in [-scale, scale)
Initializer normal(double deviation);  // normal with mean 0

// The spread depends on the fan of a weight (out, in, ...). fan_in is the product of all sizes but the first, and
// fan_out the product of all sizes but the second. xavier_uniform() is uniform in [-s, s) with s = gain * sqrt(6 /
// (fan_in + fan_out)) (Glorot & Bengio 2010). he_normal() has the deviation sqrt(2 / fan_in) (He et al. 2015).
// lecun_uniform() is uniform in [-1 / sqrt(fan_in), 1 / sqrt(fan_in)).
Initializer xavier_uniform(double gain = 1);
Initializer he_normal();
Initializer lecun_uniform();

}  // namespace paceline::nn
