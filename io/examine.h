#pragma once
// One pass over a record file, in which everything is learnt of it.

#include <paceline/image.h>
#include <paceline/record_tools.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "companions.h"

namespace paceline::io {

// Counts what records hold. One thread at a time.
class Survey {
 public:
  explicit Survey(RecordStatistics& into) : into_(into) {}
  void add(std::string_view record);

 private:
  void add_image(const ImageRecord& record);

  RecordStatistics& into_;
  ImageCodec codec_;
};

struct Examined {
  std::string path;  // as messages show it
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  Companions beside;
  RecordIndex index;                      // of the sound records that count, in file order
  std::vector<RecordChecksum> checksums;  // of the same
  RecordStatistics statistics;            // of the same
  std::int64_t left_out = 0;              // sound records that the index does not name
  std::vector<RecordDamage> damage;       // in file order
  std::string problem;                    // of index or checksums, which are left aside then
};

// Throws IoError.
Examined examine(const std::string& path, const RecordWork& work);

// Throws InvalidArgument where the manifest names classes, and a label is none of them.
void require_names_for(const RecordStatistics& statistics, const Manifest& manifest);

// Throws Corrupt where something is wrong with the file.
void require_sound(const Examined& file);

}  // namespace paceline::io
