#include "shard_writer.h"

#include <paceline/crc32c.h>
#include <paceline/detail/atomic_file.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>

#include "file.h"

namespace paceline::io {
namespace {

namespace fs = std::filesystem;

constexpr int kMostShards = 10000;

// The shards that a data set of this name had, and of these only files that shard_path() names so.
std::vector<std::string> older_shards(const std::string& prefix) {
  std::vector<std::string> paths;
  const std::string name = fs::path(prefix).filename().string();
  try {
    const Manifest older = Manifest::load(prefix + ".manifest");
    for (const Shard& shard : older.shards) {
      int number = 0, of = 0, length = 0;
      const bool ours =
          shard.path.starts_with(name) &&
          std::sscanf(shard.path.c_str() + name.size(), "-%5d-of-%5d.rec%n", &number, &of, &length) == 2 &&
          static_cast<std::size_t>(length) == shard.path.size() - name.size();
      if (ours) paths.push_back(older.path_of(shard));
    }
  } catch (const Error&) {
    // There is none, or none that can be read.
  }
  return paths;
}

}  // namespace

void ShardWriter::write(std::int64_t key, std::string_view record) {
  index_.push_back({key, records_.write(record)});
  checksums_.push_back({key, crc32c(record), record.size()});
}

Shard ShardWriter::close() {
  records_.close();
  write_index(index_path(path_), index_);
  write_checksums(checksum_path(path_), checksums_);
  Shard shard;
  shard.records = records();
  shard.bytes = records_.bytes();
  shard.crc32c = records_.checksum();
  shard.index_crc32c = crc32c(read_file(index_path(path_)));
  shard.checksum_crc32c = crc32c(read_file(checksum_path(path_)));
  return shard;
}

std::string shard_path(const std::string& prefix, int shard, int shards) {
  char suffix[32];
  std::snprintf(suffix, sizeof suffix, "-%05d-of-%05d", shard, shards);
  return prefix + suffix + ".rec";
}

std::vector<std::string> files_of_shard(const std::string& record_path) {
  return {record_path, index_path(record_path), checksum_path(record_path)};
}

void check_data_set(const std::string& prefix, int shards) {
  require(shards >= 1 && shards <= kMostShards, "a data set has 1 to ", kMostShards, " shards, not ", shards);
  const std::string name = fs::path(prefix).filename().string();
  require(!name.empty(), "the prefix '", prefix, "' names no file");
  require(is_utf8(name), "the prefix ", io::in_quotes(name), " is not UTF-8, as the names in a manifest are");
}

void create_folder_of(const std::string& path) {
  require(!is_remote(path), "'", redacted(path),
          "' cannot be written: data sets are written to folders of this host, from which they can be uploaded");
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) throw_io_error("create the folder", folder.string(), error.value());
}

void rename_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw_io_error("replace", to, errno);
}

std::string publish(const std::string& prefix, const Manifest& manifest, const std::vector<std::string>& written,
                    const std::string& staged, const std::vector<std::pair<std::string, std::string>>& companions) {
  manifest.save(staged);  // fails before anything of the older data set is gone
  const fs::path folder = fs::path(prefix).parent_path();
  std::string path = prefix + ".manifest";
  std::set<std::string> names;
  for (const Shard& shard : manifest.shards) names.insert((folder / shard.path).string());
  // An older data set of the same name loses its manifest before a name changes its meaning. Shards that only the older
  // one names go first: when this is done again, its manifest still tells which they are.
  for (const std::string& shard : older_shards(prefix)) {
    if (names.contains(shard)) continue;
    for (const std::string& file : files_of_shard(shard)) unlink(file.c_str());
  }
  unlink(path.c_str());
  for (const auto& [from, to] : companions) rename_file(from, to);
  for (std::size_t i = 0; i < written.size(); ++i) {
    const std::vector<std::string> from = files_of_shard(written[i]);
    const std::vector<std::string> to = files_of_shard((folder / manifest.shards[i].path).string());
    for (std::size_t file = 0; file < from.size(); ++file) {
      if (fs::exists(from[file]) || !fs::exists(to[file])) rename_file(from[file], to[file]);
    }
  }
  rename_file(staged, path);
  detail::sync_folder_of(path);
  return path;
}

}  // namespace paceline::io
