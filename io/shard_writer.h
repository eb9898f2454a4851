#pragma once
// One record file of a data set that is being written, and the moment when finished files become a data set.

#include <paceline/manifest.h>
#include <paceline/recordio.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace paceline::io {

// `x.rec` with its index and checksums. One thread at a time.
class ShardWriter {
 public:
  // Begins the record file. Throws IoError.
  explicit ShardWriter(const std::string& path) : path_(path), records_(path) {}

  const std::string& path() const { return path_; }
  std::int64_t records() const { return static_cast<std::int64_t>(index_.size()); }
  // Throws IoError.
  void write(std::int64_t key, std::string_view record);
  // Makes all three files durable. The shard's `path` is left empty.
  Shard close();

 private:
  std::string path_;
  RecordWriter records_;
  RecordIndex index_;
  std::vector<RecordChecksum> checksums_;
};

// PREFIX-00001-of-00004.rec
std::string shard_path(const std::string& prefix, int shard, int shards);

// `x.rec`, `x.idx` and `x.crc`.
std::vector<std::string> files_of_shard(const std::string& record_path);

// Throws InvalidArgument unless a data set can have this name and so many shards.
void check_data_set(const std::string& prefix, int shards);

// Throws IoError, and InvalidArgument for a path of another host.
void create_folder_of(const std::string& path);

// Makes finished shards a data set: the files at written[i] get the name of manifest.shards[i] beside `prefix`. The
// manifest is written first, to `staged`, and gets its name last. Files that have their names already are left alone,
// so that what was killed here can be done again. An older data set of the name goes, unless the manifest cannot be
// written. `companions` are other files of the data set, each with the name that it gets. Returns the path of the
// manifest. Throws as Manifest::save().
std::string publish(const std::string& prefix, const Manifest& manifest, const std::vector<std::string>& written,
                    const std::string& staged, const std::vector<std::pair<std::string, std::string>>& companions = {});

// Throws IoError.
void rename_file(const std::string& from, const std::string& to);

}  // namespace paceline::io
