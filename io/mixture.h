#pragma once
// What a loader reads: one data set, or several that are mixed.

#include <paceline/manifest.h>
#include <paceline/sampling.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace paceline::io {

struct Mixture {
  Manifest manifest;  // of all shards
  std::string path;   // of the manifest, for errors
  // The first shard of each data set, and its weight. None: there is one set, which is not mixed.
  std::vector<std::pair<std::size_t, double>> parts = {};
};

// Throws as Manifest::load(). Throws InvalidArgument without sets, and where payloads, labels or classes differ.
Mixture mixture_of(const std::vector<MixedDataSet>& sets);

// The first record of each shard, and the number of records.
std::vector<std::int64_t> starts_of(const Manifest& manifest);
// A checksum over the record counts and checksums of all shards in order. It does not depend on paths.
std::string identity_of(const Manifest& manifest);

}  // namespace paceline::io
