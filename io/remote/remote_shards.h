#pragma once
// Reading ahead: the shards of a data set on another host, fetched in the order in which an epoch needs them.

#include <paceline/manifest.h>
#include <paceline/mutex.h>

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "remote/cache.h"

namespace paceline::io {

class RemoteShards {
 public:
  // Gives the remote shards of the next batch of the epoch, each once. Returns false after the last batch.
  using Walk = std::function<bool(std::vector<std::size_t>& shards)>;

  // `name` is the manifest's, for messages. Throws IoError where the cache cannot be used.
  RemoteShards(const Manifest& manifest, std::string name, OnDamage on_damage);
  ~RemoteShards() { end(); }

  // Forgets the epoch before, and fetches ahead on threads of its own. One thread calls begin() and end().
  void begin(Walk walk);
  // From now on, file() throws for every shard that is not open. Returns when nothing is fetched any more.
  void end();
  // Returns the file of a shard and blocks until it is open. A shard that is waited for is fetched before those that
  // are only read ahead. Throws IoError, Corrupt, what `walk` threw, and Error after end(). Thread-safe.
  std::shared_ptr<const RecordFile> file(std::size_t shard);
  // A record of the open shard is damaged. The next opening fetches the shard anew, as only the copy here may be
  // damaged. Returns the copy's folder; empty where there is none. Thread-safe. Throws IoError.
  std::string distrust(std::size_t shard);
  // Says that the first `batches` batches of the epoch are done. Once `walk` has given all batches, shards that no
  // later batch needs are closed. Thread-safe.
  void passed(std::int64_t batches);
  // The URLs of the shards that are open, in the order of their numbers. Thread-safe.
  std::vector<std::string> open() const;

 private:
  enum class State { kUnknown, kWaiting, kFetching, kHere, kFailed };
  struct Entry {
    State state = State::kUnknown;
    bool used = false;                               // file() was called for it
    std::int64_t first_batch = -1, last_batch = -1;  // that need it, as far as is known
    std::optional<ShardCache::Held> held;
    std::shared_ptr<const RecordFile> file;
    std::exception_ptr error;
  };
  struct Fetched {
    std::optional<ShardCache::Held> held;  // none where the cache has no room
    std::shared_ptr<const RecordFile> file;
  };

  void walk(const Walk& walk);
  void work();
  Fetched fetch(std::size_t shard);
  void fetch_with_patience(std::size_t shard);
  void settle(std::size_t shard, Fetched fetched, std::exception_ptr error) PACELINE_REQUIRES(mutex_);
  bool choose(std::size_t& shard) PACELINE_REQUIRES(mutex_);
  std::uint64_t bytes_needed_with(std::size_t shard) const PACELINE_REQUIRES(mutex_);
  bool retreat(std::size_t shard) PACELINE_REQUIRES(mutex_);
  void close(std::size_t shard) PACELINE_REQUIRES(mutex_);
  void close_passed() PACELINE_REQUIRES(mutex_);

  const Manifest& manifest_;
  const std::string name_;
  const OnDamage on_damage_;
  ShardCache cache_{detail::CacheSettings::from_environment()};
  std::vector<std::thread> threads_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Entry> entries_ PACELINE_GUARDED_BY(mutex_);
  std::deque<std::size_t> urgent_ PACELINE_GUARDED_BY(mutex_);  // somebody waits for them
  std::deque<std::size_t> queue_ PACELINE_GUARDED_BY(mutex_);   // in the order of the epoch
  std::set<std::size_t> ahead_ PACELINE_GUARDED_BY(mutex_);     // fetched or being fetched, and not used yet
  std::set<std::size_t> here_ PACELINE_GUARDED_BY(mutex_);
  std::int64_t passed_ PACELINE_GUARDED_BY(mutex_) = 0;
  bool walked_ PACELINE_GUARDED_BY(mutex_) = false;  // every last_batch is final
  bool full_ PACELINE_GUARDED_BY(mutex_) = false;    // reading ahead waits for room
  bool ended_ PACELINE_GUARDED_BY(mutex_) = true;
  std::exception_ptr failed_ PACELINE_GUARDED_BY(mutex_);  // what the walk threw
};

}  // namespace paceline::io
