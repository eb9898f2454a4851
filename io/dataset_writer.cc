#include <paceline/error.h>
#include <paceline/manifest.h>

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "shard_writer.h"

namespace paceline {

struct DatasetWriter::State {
  std::string prefix;
  std::vector<std::unique_ptr<io::ShardWriter>> shards;
  bool finished = false;

  std::string staged_manifest() const { return str(prefix, ".manifest-writing-", getpid()); }

  ~State() {
    if (finished) return;
    unlink(staged_manifest().c_str());
    for (const auto& shard : shards)
      for (const std::string& path : io::files_of_shard(shard->path())) unlink(path.c_str());
  }
};

DatasetWriter::DatasetWriter(const std::string& prefix, int shards) : state_(std::make_unique<State>()) {
  io::check_data_set(prefix, shards);
  io::create_folder_of(prefix);
  state_->prefix = prefix;
  for (int i = 0; i < shards; ++i) {
    std::string temporary = io::shard_path(prefix, i, shards);
    temporary.insert(temporary.size() - std::string_view(".rec").size(), str("-writing-", getpid()));
    state_->shards.push_back(std::make_unique<io::ShardWriter>(temporary));
  }
}

DatasetWriter::~DatasetWriter() = default;

void DatasetWriter::write(int shard, std::int64_t key, std::string_view record) {
  const std::size_t shards = state_->shards.size();
  require(shard >= 0 && static_cast<std::size_t>(shard) < shards, "there is no shard ", shard, "; the data set has ",
          shards, ", from 0");
  state_->shards[static_cast<std::size_t>(shard)]->write(key, record);
}

std::string DatasetWriter::finish(Manifest manifest) {
  const int shards = static_cast<int>(state_->shards.size());
  std::int64_t records = 0;
  for (const auto& shard : state_->shards) records += shard->records();
  manifest.shards.clear();
  std::vector<std::string> written;
  for (const auto& open : state_->shards) {
    const std::string name = io::shard_path(state_->prefix, static_cast<int>(written.size()), shards);
    require(open->records() > 0, "the shard ", name, " would be empty: ", records, " records were given for ", shards,
            " shards; ask for fewer shards");
    Shard shard = open->close();
    shard.path = std::filesystem::path(name).filename().string();
    manifest.shards.push_back(std::move(shard));
    written.push_back(open->path());
  }
  const std::string path = io::publish(state_->prefix, manifest, written, state_->staged_manifest());
  state_->finished = true;
  return path;
}

}  // namespace paceline
