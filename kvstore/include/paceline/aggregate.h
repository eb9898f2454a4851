#pragma once
// How gradients are combined: the gradients of the workers in a round, or of several devices in one call.

#include <paceline/options.h>

#include <cstdint>

namespace paceline {

// The two ways to combine gradients. Sums are computed in a fixed order, in `dist_sync` in rank order. Running
// statistics are averaged in both cases.
enum class Aggregate : std::uint8_t {
  kMean,  // the mean; workers are weighted by their examples, devices are weighted equally
  kSum,   // the plain sum, as in MXNet's store
};

// Reads the option `aggregate` of a mode: `mean` or `sum`. Returns `otherwise` if the option is absent. Throws
// InvalidArgument for other values.
Aggregate parse_aggregate(const Options& options, Aggregate otherwise);

}  // namespace paceline
