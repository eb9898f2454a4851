#include <paceline/manifest.h>

#include "fuzz.h"

namespace paceline::fuzz {

void manifest(std::string_view input) {
  const std::string path = file_of(input);
  const auto read =
      within(65536 + 256 * input.size(), [&] { return parsed<Corrupt>([&] { return Manifest::load(path); }); });
  if (!read) return;
  for (const Shard& shard : read->shards) expect(shard.records > 0, "a shard of ", shard.records, " records");
  read->save(path_of("output"));
  expect(Manifest::load(path_of("output")) == *read, "the manifest comes back as another");
}

}  // namespace paceline::fuzz
