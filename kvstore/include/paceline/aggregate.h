#pragma once
// How the gradients that several workers push in a round, or several devices in a call, make one gradient.

#include <paceline/options.h>

#include <cstdint>

namespace paceline {

// One way of the two. Sums are added up in rank order, or in the order of the devices. Running statistics are averaged
// under both.
enum class Aggregate : std::uint8_t {
  kMean,  // the mean, weighted by the examples of each worker; devices count alike
  kSum,   // the sum of the gradients as they are, as in MXNet's store
};

// Reads the option `aggregate` of a mode: `mean` or `sum`; `otherwise` where it is absent. Throws InvalidArgument on
// other values.
Aggregate parse_aggregate(const Options& options, Aggregate otherwise);

}  // namespace paceline
