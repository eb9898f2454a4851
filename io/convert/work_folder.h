#pragma once
// What a conversion has done so far, on disk: the folder PREFIX.converting with the finished shards. A shard is
// finished when `x.done` is there, which holds its sizes, checksums and statistics.

#include <paceline/manifest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "convert/tally.h"
#include "file_lock.h"

namespace paceline::io {

// One finished shard.
struct ShardResult {
  Shard shard;  // its `path` is the name of the record file
  Tally tally;
  std::vector<std::pair<std::string, std::string>> bad;  // place and problem of entries that were left out
};

// One thread at a time.
class WorkFolder {
 public:
  // Takes over what an earlier run with the same identity left; removes what another one left. Throws IoError, and
  // InvalidArgument where another process works in the folder, or it is no such folder.
  WorkFolder(const std::string& prefix, const std::string& identity);
  // Removes the folder, unless keep() was called and there is a finished shard in it.
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::string& path() const { return folder_; }
  // Where the shard with this final path is written.
  std::string path_of(const std::string& final_path) const;
  // Is the shard finished, whole, and either here or under its final path? Otherwise `result` stays as it is.
  bool find(const std::string& final_path, ShardResult& result) const;
  void finish(const ShardResult& result);
  // The finished shards, of this run and of earlier ones.
  int finished() const { return finished_; }
  void count_found() { ++finished_; }
  // The folder stays for the next run.
  void keep() { keep_ = true; }
  // Throws IoError.
  void remove();

 private:
  void clear();

  std::string folder_;
  std::optional<FileLock> lock_;
  int finished_ = 0;
  bool keep_ = false;
};

}  // namespace paceline::io
