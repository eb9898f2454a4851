#pragma once
// The record files of a data set that are open: those that were used last.

#include <paceline/manifest.h>
#include <paceline/mutex.h>
#include <paceline/recordio.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace paceline::io {

// Thread-safe. An open shard takes about 24 bytes of memory for each of its records.
class OpenShards {
 public:
  // `manifest` must outlive it; `path` names it in errors. With `strict` a shard must be as long as the manifest says.
  OpenShards(const Manifest& manifest, std::string path, bool strict)
      : manifest_(manifest), path_(std::move(path)), strict_(strict) {}

  // Opens the first `most` of `shards` by several threads, and sees that there are the others. From now on at most
  // `most` are open that nobody holds. Throws IoError naming host and path where one is missing, Corrupt where index or
  // checksums are damaged.
  void begin(const std::vector<std::size_t>& shards, std::size_t most, int threads);
  // The shard, opened where it is not open. Throws as begin().
  std::shared_ptr<const RecordFile> get(std::size_t shard);
  // The paths of those that are open, in the order of the manifest.
  std::vector<std::string> paths() const;

 private:
  // A shard that is open, or that a thread is opening.
  struct Slot {
    Mutex mutex;
    std::shared_ptr<const RecordFile> file PACELINE_GUARDED_BY(mutex);
  };
  struct Entry {
    std::shared_ptr<Slot> slot;
    std::uint64_t used = 0;
  };
  void close_those_too_many() PACELINE_REQUIRES(mutex_);
  std::shared_ptr<const RecordFile> open(const Shard& shard) const;
  void check_size(const Shard& shard, std::uint64_t bytes) const;

  const Manifest& manifest_;
  const std::string path_;
  const bool strict_;
  mutable Mutex mutex_;
  std::map<std::size_t, Entry> entries_ PACELINE_GUARDED_BY(mutex_);
  std::size_t most_ PACELINE_GUARDED_BY(mutex_) = 1;
  std::uint64_t uses_ PACELINE_GUARDED_BY(mutex_) = 0;
};

}  // namespace paceline::io
