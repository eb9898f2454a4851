#include <paceline/record_tools.h>

#include <paceline/crc32c.h>
#include <paceline/detail/in_parallel.h>
#include <paceline/error.h>

#include <filesystem>

#include "examine.h"

namespace paceline {
namespace {

bool is_record_file(const std::string& source) { return std::filesystem::path(source).extension() == ".rec"; }

void compare(const io::Examined& file, const Shard& shard, std::vector<std::string>& problems) {
  const auto problem = [&](const auto&... parts) { problems.push_back(str(file.path, ": ", parts...)); };
  if (file.bytes != shard.bytes) problem("the file has ", file.bytes, " bytes, the manifest says ", shard.bytes);
  if (!file.beside.index) {
    if (file.problem.empty()) problem("its index ", index_path(file.path), " is missing");
    return;
  }
  const std::size_t records = file.beside.index->size();
  if (static_cast<std::int64_t>(records) != shard.records)
    problem("the index holds ", records, " records, the manifest says ", shard.records);
  if (problems.empty() && file.crc32c != shard.crc32c) problem("the CRC32C of the file differs from the manifest's");
  if (file.beside.index_crc32c != shard.index_crc32c) problem("the CRC32C of its index differs from the manifest's");
  if (!file.beside.checksums) {
    if (file.problem.empty()) problem("the file of record checksums ", checksum_path(file.path), " is missing");
  } else if (file.beside.checksum_crc32c != shard.checksum_crc32c) {
    problem("the CRC32C of its record checksums differs from the manifest's");
  }
}

}  // namespace

std::vector<std::string> record_files(const std::string& source) {
  if (is_record_file(source)) return {source};
  const Manifest manifest = Manifest::load(source);
  std::vector<std::string> files;
  for (const Shard& shard : manifest.shards) files.push_back(manifest.path_of(shard));
  return files;
}

VerifyReport verify(const std::string& source, const RecordWork& work) {
  const bool alone = is_record_file(source);
  const Manifest manifest = alone ? Manifest() : Manifest::load(source);
  const std::size_t count = alone ? 1 : manifest.shards.size();
  std::vector<VerifyReport> reports(count);
  detail::in_parallel(count, work.threads, [&](std::size_t i) {
    const std::string path = alone ? source : manifest.path_of(manifest.shards[i]);
    std::vector<std::string>& problems = reports[i].problems;
    try {
      const io::Examined file = io::examine(path, work);
      reports[i].records = static_cast<std::int64_t>(file.index.size());
      reports[i].left_out = file.left_out;
      // A manifest has a checksum of the whole file.
      if (alone && !file.beside.checksums) reports[i].unchecked = reports[i].records;
      for (const RecordDamage& damage : file.damage) problems.push_back(damage.text());
      if (!file.problem.empty()) problems.push_back(file.problem);
      if (!alone) compare(file, manifest.shards[i], problems);
    } catch (const IoError& error) {
      problems.push_back(error.what());
    }
  });
  VerifyReport all;
  for (VerifyReport& report : reports) {
    ++all.shards;
    all.records += report.records;
    all.left_out += report.left_out;
    all.unchecked += report.unchecked;
    for (std::string& problem : report.problems) all.problems.push_back(std::move(problem));
  }
  return all;
}

RecordStatistics statistics(const std::string& source, const RecordWork& work) {
  const std::vector<std::string> files = record_files(source);
  std::vector<RecordStatistics> parts(files.size());
  detail::in_parallel(files.size(), work.threads, [&](std::size_t i) {
    const io::Examined file = io::examine(files[i], work);
    io::require_sound(file);
    parts[i] = file.statistics;
  });
  RecordStatistics all;
  for (const RecordStatistics& part : parts) all.add(part);
  return all;
}

}  // namespace paceline
