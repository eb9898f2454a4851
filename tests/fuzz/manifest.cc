#include <paceline/manifest.h>

#include "fuzz.h"

namespace paceline::fuzz {

void manifest(std::string_view input) {
  const std::string path = file_of(input);
  const auto read =
      within(65536 + 256 * input.size(), [&] { return parsed<Corrupt>([&] { return Manifest::load(path); }); });
  if (!read) return;
  expect(read->records() >= static_cast<std::int64_t>(read->shards.size()), read->records(), " records");
  read->save(path_of("output"));
  expect(Manifest::load(path_of("output")) == *read, "the manifest comes back as another");
}

}  // namespace paceline::fuzz
