#pragma once
// A record file as a manifest describes it.

#include <paceline/manifest.h>

#include <memory>
#include <string>

namespace paceline::io {

// Opens a shard at `path`: its own, or that of a copy, which messages do not name. `manifest_name` is for messages.
// Throws IoError; Corrupt where the files are not those that the manifest describes. Under kSkip the record file may be
// of another size.
std::unique_ptr<RecordFile> open_shard(const Manifest& manifest, const std::string& manifest_name, const Shard& shard,
                                       const std::string& path, OnDamage on_damage);

}  // namespace paceline::io
