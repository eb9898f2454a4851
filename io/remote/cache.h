#pragma once
// Shards of other hosts, kept in a folder of this host, which all its processes share:
//
//   KEY/             shard.rec, shard.idx, shard.crc: whole, as it appears by a rename; shard.rec.damaged where a
//                    loader that skips damaged records has kept them
//   KEY.BYTES.part/  the same while they are fetched; BYTES is the room that they take at most
//   KEY.lock         held alone while the shard is fetched or removed, shared while it is used
//   room.lock        held while somebody makes room, and while KEY.BYTES.part becomes KEY
//
// A shard is fetched by one process, and the others wait for it. What was used longest ago makes room. What a killed
// process left is removed when somebody needs the shard or the room.

#include <paceline/detail/remote.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "file_lock.h"

namespace paceline::io {

// Thread-safe.
class ShardCache {
 public:
  // Creates the folder: without a name, paceline-cache-UID in the folder for temporary files. Without a size, it takes
  // half of what its file system has left for it. Throws IoError.
  explicit ShardCache(detail::CacheSettings settings);

  struct Wanted {
    std::string key;  // letters and digits; differs where the contents do
    // The bytes of its files by name: of the first exactly, of the others at most.
    std::vector<std::pair<std::string, std::uint64_t>> files;
    std::uint64_t most_bytes() const;
  };
  // A shard in use. It stays until this is destroyed.
  struct Held {
    std::string folder;
    FileLock lock;
    bool fetched = false;  // by this call
  };
  // Writes the files of a shard into a folder.
  using Fill = std::function<void(const std::string& folder)>;
  // Takes a shard, after `fill` where it is not there. Blocks while another process fetches it. None: shards in use
  // leave no room. Throws what `fill` and `tick` throw, and IoError.
  std::optional<Held> take(const Wanted& shard, const Fill& fill, const detail::Tick& tick);
  // Removes a shard that turned out to be damaged. False: somebody uses it.
  bool drop(const std::string& key);
  // Can it never hold so many bytes, whatever other processes do?
  bool is_too_small_for(std::uint64_t bytes) const { return most_bytes_ > 0 && bytes > most_bytes_; }
  // Why there is no room for a shard, as a sentence.
  std::string no_room_for(const Wanted& shard) const;

 private:
  struct Entry;
  std::string path(const std::string& name) const { return folder_ + '/' + name; }
  void remove_what_is_left_of(const std::string& key) const;  // who calls this holds KEY.lock alone
  std::string part_of(const Wanted& shard) const;
  FileLock room_lock() const { return FileLock::wait(path("room.lock")); }
  bool is_whole(const Wanted& shard) const;
  bool make_room(const Wanted& shard) const;
  std::uint64_t most_bytes(std::uint64_t used) const;

  std::string folder_;
  std::uint64_t most_bytes_;
};

}  // namespace paceline::io
