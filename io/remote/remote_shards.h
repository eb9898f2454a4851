#pragma once
// Reading ahead: the shards of a data set on another host, fetched in the order in which an epoch needs them. They get
// their room in the cache in this order, whichever thread asks first. So the order and the size of the cache decide
// whether an epoch ends: each batch must find room for the shards that are in use then.
//
// Where an epoch comes in pieces, nobody knows the next piece. A guess at its shards is fetched when those of this
// piece are there, as long as guesses come true. It takes only free room of the cache, and once it is there, other
// shards may take that room. It is given up where this process needs the room, and otherwise before other processes
// lose patience.

#include <paceline/manifest.h>
#include <paceline/mutex.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "remote/cache.h"
#include "remote/fetch_shard.h"

namespace paceline::io {

class RemoteShards {
 public:
  // Gives the remote shards of the next batch of the epoch, each once. Returns false after the last batch.
  using Walk = std::function<bool(std::vector<std::size_t>& shards)>;

  // `name` is the manifest's, for messages. `patience`: how long a shard waits for room that other processes use.
  // Throws IoError where the cache cannot be used.
  RemoteShards(const Manifest& manifest, std::string name, OnDamage on_damage,
               std::chrono::nanoseconds patience = std::chrono::minutes(5));
  ~RemoteShards() { end(); }

  // Forgets the epoch before, and fetches ahead on threads of its own. One thread calls begin(), extend() and end().
  void begin(Walk walk);
  // The next piece of an epoch, after the last batch of `walk` before is done. Batches count from 0 again. `guess`
  // gives shards of the piece after this one, as `walk` does; it may be wrong. What is fetched on the guess before goes
  // on.
  void extend(Walk walk, Walk guess = {});
  // From now on, file() throws for every shard that is not open. Returns when nothing is fetched any more.
  void end();
  // Returns the file of a shard that `walk` gives, and blocks until it is open. Throws IoError, Corrupt, what `walk`
  // threw, and Error after end(). Thread-safe.
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
  struct Entry {
    std::int64_t first_batch = -1, last_batch = -1;  // that need it, as far as is known
    std::size_t turn = 0;                            // its place in order_, once a batch is known
    CachedShard cached;                              // while it is open
    std::exception_ptr error;
  };

  void start_over(Walk walk, Walk guess);
  void stop_walking();
  void walk(const Walk& walk, const Walk& guess);
  void walk_on(const Walk& guess);
  void work();
  void work_on_guesses();
  bool fetch_guess(std::size_t shard, std::chrono::steady_clock::time_point give_up);
  CachedShard fetch(std::size_t shard);
  void fetch_with_patience(std::size_t shard);
  void settle(std::size_t shard, CachedShard fetched, std::exception_ptr error) PACELINE_REQUIRES(mutex_);
  bool may_fetch() const PACELINE_REQUIRES(mutex_);
  bool may_fetch_guesses() const PACELINE_REQUIRES(mutex_);
  void let_others_take_room(std::size_t shard) PACELINE_REQUIRES(mutex_);
  std::uint64_t bytes_needed_with(std::size_t shard) const PACELINE_REQUIRES(mutex_);
  bool room_will_come(std::size_t shard) const PACELINE_REQUIRES(mutex_);
  void try_again() PACELINE_REQUIRES(mutex_);
  void close(std::size_t shard) PACELINE_REQUIRES(mutex_);
  void close_passed() PACELINE_REQUIRES(mutex_);

  const Manifest& manifest_;
  const std::string name_;
  const OnDamage on_damage_;
  const std::chrono::nanoseconds patience_;
  ShardCache cache_{detail::CacheSettings::from_environment()};
  std::vector<std::thread> threads_;
  std::thread walker_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Entry> entries_ PACELINE_GUARDED_BY(mutex_);
  std::vector<std::size_t> order_ PACELINE_GUARDED_BY(mutex_);  // the shards, as far as the walk has come
  std::size_t next_ PACELINE_GUARDED_BY(mutex_) = 0;            // of order_, to be fetched
  std::size_t asked_ PACELINE_GUARDED_BY(mutex_) = 0;           // behind the last of order_ that file() was called for
  std::optional<std::size_t> taking_ PACELINE_GUARDED_BY(mutex_);  // a shard that has no room yet; the next ones wait
  std::size_t fetching_ PACELINE_GUARDED_BY(mutex_) = 0;           // shards of order_
  std::set<std::size_t> here_ PACELINE_GUARDED_BY(mutex_);         // that are open
  std::int64_t passed_ PACELINE_GUARDED_BY(mutex_) = 0;
  bool walking_ PACELINE_GUARDED_BY(mutex_) = false;       // the walk may go on
  bool walked_ PACELINE_GUARDED_BY(mutex_) = false;        // every last_batch is final
  bool full_ PACELINE_GUARDED_BY(mutex_) = false;          // reading ahead waits for room
  std::uint64_t retries_ PACELINE_GUARDED_BY(mutex_) = 0;  // calls of try_again()
  bool ended_ PACELINE_GUARDED_BY(mutex_) = true;
  std::exception_ptr failed_ PACELINE_GUARDED_BY(mutex_);  // what the walk threw

  std::vector<std::size_t> guess_ PACELINE_GUARDED_BY(mutex_);    // shards of the piece after this one
  std::vector<std::size_t> guesses_ PACELINE_GUARDED_BY(mutex_);  // to be fetched
  bool guess_holds_ PACELINE_GUARDED_BY(mutex_) = true;           // the last one came true
  bool guessing_ PACELINE_GUARDED_BY(mutex_) = false;             // guesses are fetched
  bool give_way_ PACELINE_GUARDED_BY(mutex_) = false;             // and shall not be any more
};

}  // namespace paceline::io
