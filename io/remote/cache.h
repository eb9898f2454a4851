#pragma once
// Keeps shards of other hosts in a folder of this host, which all its processes share:
//
//   KEY/             shard.rec, shard.idx and shard.crc, all complete, because a rename makes the folder appear;
//                    shard.rec.damaged where a loader has kept a damaged shard.rec, to skip its damaged records
//   KEY.BYTES.part/  the same files while they are fetched; BYTES is the room that they take at most
//   KEY.gone/        a folder that is being removed
//   KEY.lock         an exclusive lock while the shard is fetched or removed, and a shared lock while it is used
//   room.lock        an exclusive lock while a process makes room, and while KEY.BYTES.part becomes KEY, until KEY is
//                    in use, or for about 0.2 s where another process holds KEY.lock then
//
// One process fetches a shard, and the others wait for it. The shards that were used longest ago are removed to make
// room. A process that needs the shard or the room removes what a killed process left.

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
  // Creates the folder. Without a name, it is paceline-cache-UID in the folder for temporary files. Without a size, the
  // cache may hold half of the sum of its own bytes and the free bytes of its file system. Throws IoError.
  explicit ShardCache(detail::CacheSettings settings);

  struct Wanted {
    std::string key;  // letters and digits; differs where the contents do
    // The names of its files and their bytes. The bytes are exact for the first file, and a limit for the others.
    std::vector<std::pair<std::string, std::uint64_t>> files;
    std::uint64_t most_bytes() const;
  };
  // A shard in use. It stays until this is destroyed.
  struct Held {
    std::string folder;
    FileLock lock;
    bool fetched = false;     // by this call
    std::uint64_t bytes = 0;  // of its files
  };
  // Where a shard gets its room.
  enum class Room {
    kMade,  // others are removed for it
    kFree,  // nothing is removed for it
  };
  // Writes the files of a shard into a folder.
  using Fill = std::function<void(const std::string& folder)>;
  // Takes a shard into use. If the cache does not have it, `fill` fetches it first. Blocks while somebody else fetches
  // it, and calls `has_room` meanwhile, as that process has taken the shard's room. Returns none where shards in use
  // leave no room, or, with kFree, any shards. Throws what `fill` and `tick` throw, and IoError, also where a shard in
  // use has lost a file.
  std::optional<Held> take(const Wanted& shard, const Fill& fill, const detail::Tick& tick,
                           const std::function<void()>& has_room = {}, Room room = Room::kMade);
  // Removes a shard that turned out to be damaged. Returns false, and removes nothing, where somebody uses it.
  bool drop(const std::string& key);
  // Is the cache's size, as it is now, smaller than `bytes`?
  bool is_too_small_for(std::uint64_t bytes) const;
  // Why there is no room for a shard, as a sentence.
  std::string no_room_for(const Wanted& shard) const;

 private:
  struct Entry;
  std::string path(const std::string& name) const { return folder_ + '/' + name; }
  void remove_what_is_left_of(const std::string& key) const;  // who calls this holds KEY.lock alone
  void remove_folder(const std::string& name) const;          // the same
  std::string part_of(const Wanted& shard) const;
  FileLock room_lock(const detail::Tick& tick) const;
  bool is_whole(const Wanted& shard) const;
  bool make_room(const Wanted& shard, const detail::Tick& tick, Room room) const;
  std::uint64_t used_bytes() const;
  std::uint64_t most_bytes(std::uint64_t used) const;

  std::string folder_;
  std::uint64_t most_bytes_;
};

}  // namespace paceline::io
