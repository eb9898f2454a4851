#pragma once
// One shard of a data set on another host.

#include <paceline/manifest.h>

#include <string>

#include "remote/cache.h"

namespace paceline::io {

// What the cache is asked for. A shard that changes, or another data set at the same place, has another key.
ShardCache::Wanted wanted(const Manifest& manifest, const Shard& shard);

// Writes shard.rec, shard.idx and shard.crc into a folder, and compares them with the manifest, which messages call
// `manifest_name`. What arrives damaged is fetched again. Throws IoError, and Corrupt where it stays damaged.
void fetch_shard(const Manifest& manifest, const std::string& manifest_name, const Shard& shard,
                 const std::string& folder, const detail::Tick& tick);

}  // namespace paceline::io
