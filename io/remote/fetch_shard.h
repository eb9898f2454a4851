#pragma once
// One shard of a data set on another host.

#include <paceline/manifest.h>
#include <paceline/recordio.h>

#include <string>

#include "remote/cache.h"

namespace paceline::io {

// What the cache is asked for. A shard that changes, or another data set at the same place, has another key.
ShardCache::Wanted wanted(const Manifest& manifest, const Shard& shard);

// Writes shard.rec, shard.idx and shard.crc into a folder, and compares them with the manifest, which messages call
// `manifest_name`. What arrives damaged is fetched again, up to three times in all. If shard.rec stays damaged, kFail
// throws Corrupt. kSkip keeps the file, at its size in the manifest, with a warning and a mark for is_kept_damaged().
// Throws Corrupt where one of the other two files stays damaged. Throws IoError.
void fetch_shard(const Manifest& manifest, const std::string& manifest_name, const Shard& shard,
                 const std::string& folder, OnDamage on_damage, const detail::Tick& tick);

// Are the records in this folder damaged, as fetch_shard() or mark_damaged() left them?
bool is_kept_damaged(const std::string& folder);
void mark_damaged(const std::string& folder);

}  // namespace paceline::io
