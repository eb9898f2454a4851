#include "open_shard.h"

#include <paceline/crc32c.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include "file.h"

namespace paceline::io {

std::unique_ptr<RecordFile> open_shard(const Manifest& manifest, const std::string& manifest_name, const Shard& shard,
                                       const std::string& path, OnDamage on_damage) {
  const std::string name = redacted(manifest.path_of(shard));
  // A damaged companion would otherwise be taken for damage of the records, or leave them unchecked.
  for (const auto& [of, expected] :
       {std::pair{&index_path, shard.index_crc32c}, std::pair{&checksum_path, shard.checksum_crc32c}}) {
    if (crc32c(read_file(of(path))) != expected) {
      throw Corrupt(str(of(name), " is damaged: its CRC32C differs from the one in the manifest ", manifest_name));
    }
  }
  auto file = std::make_unique<RecordFile>(path, name);
  if (file->size() != shard.records) {
    throw Corrupt(str(index_path(name), " holds ", file->size(), " records, the manifest ", manifest_name, " says ",
                      shard.records));
  }
  if (file->bytes() != shard.bytes && on_damage == OnDamage::kFail) {
    throw Corrupt(str(name, " has ", file->bytes(), " bytes, the manifest ", manifest_name, " says ", shard.bytes));
  }
  return file;
}

}  // namespace paceline::io
