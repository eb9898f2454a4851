#include <paceline/crc32c.h>
#include <paceline/error.h>
#include <paceline/manifest.h>

#include <algorithm>
#include <filesystem>

#include "file.h"

namespace paceline {
namespace {

class Verifier {
 public:
  explicit Verifier(VerifyReport& report) : report_(report) {}

  // `shard` is what a manifest says of the file, null where it stands alone.
  void file(const std::string& path, const Shard* shard) {
    ++report_.shards;
    try {
      const std::size_t before = report_.problems.size();
      const std::uint32_t checksum = frames(path);
      if (std::filesystem::exists(index_path(path)) || shard) indexed(path);
      if (shard) compare(path, *shard, checksum, report_.problems.size() == before);
    } catch (const Error& error) {
      report_.problems.push_back(error.what());
    }
  }

 private:
  // Walks the file without its index; finds damage that no index entry points at.
  std::uint32_t frames(const std::string& path) {
    RecordReader reader(path, OnDamage::kSkip);
    std::string record;
    while (reader.next(record)) ++report_.records;
    for (const RecordDamage& damage : reader.damage()) report_.problems.push_back(damage.text());
    damaged_ = !reader.damage().empty();

    const io::InputFile file(path);
    std::string block(std::min<std::uint64_t>(file.size(), std::uint64_t{1} << 20), '\0');
    std::uint32_t checksum = 0;
    for (std::uint64_t offset = 0; offset < file.size(); offset += block.size()) {
      checksum = crc32c({block.data(), file.read_at(offset, block.data(), block.size())}, checksum);
    }
    return checksum;
  }

  void indexed(const std::string& path) {
    const RecordFile file(path);
    std::string record;
    RecordDamage damage;
    for (std::int64_t place = 0; place < file.size(); ++place) {
      if (file.try_read(place, record, damage)) continue;
      const std::string text = damage.text();
      // Framing damage was named by the walk already, unless it lies in the index.
      const bool known = damaged_ && !report_.problems.empty() &&
                         std::find(report_.problems.begin(), report_.problems.end(), text) != report_.problems.end();
      if (!known) report_.problems.push_back(text);
    }
  }

  void compare(const std::string& path, const Shard& shard, std::uint32_t checksum, bool sound) {
    const auto problem = [&](const auto&... parts) { report_.problems.push_back(str(path, ": ", parts...)); };
    const std::uint64_t bytes = std::filesystem::file_size(path);
    const std::int64_t records = static_cast<std::int64_t>(read_index(index_path(path)).size());
    if (bytes != shard.bytes) problem("the file has ", bytes, " bytes, the manifest says ", shard.bytes);
    if (records != shard.records) problem("the index holds ", records, " records, the manifest says ", shard.records);
    if (sound && bytes == shard.bytes && checksum != shard.crc32c) {
      problem("the CRC32C of the file differs from the manifest's");
    }
    if (crc32c(io::read_file(index_path(path))) != shard.index_crc32c) {
      problem("the CRC32C of its index differs from the manifest's");
    }
    if (!std::filesystem::exists(checksum_path(path))) {
      problem("the file of record checksums ", checksum_path(path), " is missing");
    } else if (crc32c(io::read_file(checksum_path(path))) != shard.checksum_crc32c) {
      problem("the CRC32C of its record checksums differs from the manifest's");
    }
  }

  VerifyReport& report_;
  bool damaged_ = false;
};

}  // namespace

VerifyReport verify(const std::string& manifest_or_record_file) {
  VerifyReport report;
  Verifier verifier(report);
  if (std::filesystem::path(manifest_or_record_file).extension() == ".rec") {
    verifier.file(manifest_or_record_file, nullptr);
    return report;
  }
  const Manifest manifest = Manifest::load(manifest_or_record_file);
  for (const Shard& shard : manifest.shards) verifier.file(manifest.path_of(shard), &shard);
  return report;
}

}  // namespace paceline
