#include <paceline/crc32c.h>
#include <paceline/error.h>
#include <paceline/manifest.h>

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "file.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

constexpr int kMostShards = 10000;

void rename_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) io::throw_io_error("replace", to, errno);
}

// The shards that a data set of this name had, and of these only files that a DatasetWriter names so.
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

struct OpenShard {
  std::string name;  // final path of the record file
  std::string temporary;
  std::unique_ptr<RecordWriter> records;
  RecordIndex index;
  std::vector<RecordChecksum> checksums;
};

}  // namespace

struct DatasetWriter::State {
  std::string prefix;
  std::vector<OpenShard> shards;
  bool finished = false;

  ~State() {
    if (finished) return;
    for (const OpenShard& shard : shards) {
      for (const std::string& path : {shard.temporary, index_path(shard.temporary), checksum_path(shard.temporary)}) {
        unlink(path.c_str());
      }
    }
  }
};

DatasetWriter::DatasetWriter(const std::string& prefix, int shards) : state_(std::make_unique<State>()) {
  require(shards >= 1 && shards <= kMostShards, "a data set has 1 to ", kMostShards, " shards, not ", shards);
  require(!fs::path(prefix).filename().empty(), "the prefix '", prefix, "' names no file");
  const std::string name = fs::path(prefix).filename().string();
  require(io::is_utf8(name), "the prefix ", io::quoted(name), " is not UTF-8, as the names in a manifest are");
  const fs::path folder = fs::path(prefix).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) io::throw_io_error("create the folder", folder.string(), error.value());
  state_->prefix = prefix;
  for (int i = 0; i < shards; ++i) {
    char suffix[32];
    std::snprintf(suffix, sizeof suffix, "-%05d-of-%05d", i, shards);
    OpenShard shard;
    shard.name = prefix + suffix + ".rec";
    shard.temporary = str(prefix, suffix, "-writing-", getpid(), ".rec");
    shard.records = std::make_unique<RecordWriter>(shard.temporary);
    state_->shards.push_back(std::move(shard));
  }
}

DatasetWriter::~DatasetWriter() = default;

void DatasetWriter::write(int shard, std::int64_t key, std::string_view record) {
  OpenShard& open = state_->shards.at(static_cast<std::size_t>(shard));
  open.index.push_back({key, open.records->write(record)});
  open.checksums.push_back({key, crc32c(record), record.size()});
}

std::string DatasetWriter::finish(Manifest manifest) {
  std::size_t records = 0;
  for (const OpenShard& shard : state_->shards) records += shard.index.size();
  manifest.shards.clear();
  for (OpenShard& open : state_->shards) {
    require(!open.index.empty(), "the shard ", open.name, " would be empty: ", records, " records were given for ",
            state_->shards.size(), " shards; ask for fewer shards");
    open.records->close();
    write_index(index_path(open.temporary), open.index);
    write_checksums(checksum_path(open.temporary), open.checksums);
    Shard shard;
    shard.path = fs::path(open.name).filename().string();
    shard.records = static_cast<std::int64_t>(open.index.size());
    shard.bytes = open.records->bytes();
    shard.crc32c = open.records->checksum();
    shard.index_crc32c = crc32c(io::read_file(index_path(open.temporary)));
    shard.checksum_crc32c = crc32c(io::read_file(checksum_path(open.temporary)));
    manifest.shards.push_back(std::move(shard));
  }
  // An older data set of the same name loses its manifest first, so that no manifest ever names other shards.
  const std::string path = state_->prefix + ".manifest";
  std::vector<std::string> older = older_shards(state_->prefix);
  unlink(path.c_str());
  for (const OpenShard& open : state_->shards) {
    rename_file(open.temporary, open.name);
    rename_file(index_path(open.temporary), index_path(open.name));
    rename_file(checksum_path(open.temporary), checksum_path(open.name));
  }
  manifest.save(path);
  state_->finished = true;
  for (const OpenShard& open : state_->shards) std::erase(older, open.name);
  for (const std::string& shard : older)
    for (const std::string& file : {shard, index_path(shard), checksum_path(shard)}) unlink(file.c_str());
  return path;
}

}  // namespace paceline
