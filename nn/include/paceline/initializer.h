#pragma once
// How weights start. Counter-based random numbers: the same seed and name give the same weights on every device.

#include <paceline/ndarray.h>

#include <cstdint>
#include <functional>

namespace paceline::nn {

// Fills a new weight; `seed` is derived from the network's seed and the parameter's name.
using Initializer = std::function<void(const NDArray& weight, std::uint64_t seed)>;

// Fan-in is the product of all sizes but the first (the weight of a layer is (out, in, ...)), fan-out that of all but
// the second.
Initializer constant(double value);
Initializer uniform(double scale);  // [-scale, scale)
Initializer normal(double deviation);
Initializer xavier_uniform(double gain = 1);  // Glorot & Bengio 2010
Initializer he_normal();                      // He et al. 2015
Initializer lecun_uniform();                  // [-1/sqrt(fan_in), 1/sqrt(fan_in))

}  // namespace paceline::nn
