#pragma once
// One shard of a data set on another host.

#include <paceline/manifest.h>
#include <paceline/recordio.h>

#include <functional>
#include <memory>
#include <optional>
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

// A shard that is open in the cache, and stays there until this is destroyed.
struct CachedShard {
  std::optional<ShardCache::Held> held;  // none where shards in use leave no room
  std::shared_ptr<const RecordFile> file;
};

// Opens a shard in the cache, where fetch_shard() puts it if it is not there. Calls `has_room` when the shard has its
// room: before it is fetched, while another process fetches it, and when it is open. A copy that was damaged since an
// earlier call is fetched anew, and has no room until then. Throws as fetch_shard() and ShardCache::take().
CachedShard open_in_cache(
    ShardCache& cache, const Manifest& manifest, const std::string& manifest_name, const Shard& shard,
    OnDamage on_damage, const std::function<void()>& has_room = [] {}, const detail::Tick& tick = {});

// Are the records in this folder damaged, as fetch_shard() or mark_damaged() left them?
bool is_kept_damaged(const std::string& folder);
void mark_damaged(const std::string& folder);

}  // namespace paceline::io
