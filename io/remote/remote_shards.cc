#include "remote/remote_shards.h"

#include <paceline/cores.h>
#include <paceline/detail/start_thread.h>
#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/recordio.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace paceline::io {
namespace {

constexpr std::size_t kFetchers = 2;                    // so the first shard takes the time of two at most
constexpr std::size_t kAhead = 2;                       // shards that are fetched before a batch needs them
constexpr auto kPause = std::chrono::milliseconds(50);  // between looks for room that other processes use
constexpr auto kLongPause = std::chrono::seconds(2);    // the same while this process will give room, which wakes

}  // namespace

RemoteShards::RemoteShards(const Manifest& manifest, std::string name, OnDamage on_damage,
                           std::chrono::nanoseconds patience)
    : manifest_(manifest), name_(std::move(name)), on_damage_(on_damage), patience_(patience) {}

void RemoteShards::begin(Walk walk) {
  end();
  start_over(std::move(walk), {});
  for (std::size_t i = 0; i < kFetchers; ++i)
    threads_.push_back(detail::start_thread("fetching shards", [this] { work(); }));
}

void RemoteShards::extend(Walk walk, Walk guess) {
  stop_walking();
  const bool goes_on = [this] {
    Lock lock(mutex_);
    // Shards of batches that are done are there.
    return !ended_ && !failed_ && next_ == order_.size() && fetching_ == 0;
  }();
  if (!goes_on) return begin(std::move(walk));
  if (guess && threads_.size() == kFetchers)
    threads_.push_back(detail::start_thread("fetching shards", [this] { work_on_guesses(); }));
  start_over(std::move(walk), std::move(guess));
}

void RemoteShards::start_over(Walk walk, Walk guess) {
  {
    Lock lock(mutex_);
    entries_.clear();
    entries_.resize(manifest_.shards.size());
    order_.clear();
    next_ = asked_ = 0;
    taking_.reset();
    here_.clear();
    passed_ = 0;
    walked_ = ended_ = false;
    walking_ = true;
    failed_ = nullptr;
    guesses_.clear();
    try_again();
  }
  walker_ = detail::start_thread("the order of shards",
                                 [this, walk = std::move(walk), guess = std::move(guess)] { this->walk(walk, guess); });
}

void RemoteShards::stop_walking() {
  {
    Lock lock(mutex_);
    walking_ = false;
  }
  if (walker_.joinable()) walker_.join();
}

void RemoteShards::end() {
  {
    Lock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  stop_walking();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  Lock lock(mutex_);
  guess_.clear();
}

std::shared_ptr<const RecordFile> RemoteShards::file(std::size_t shard) {
  Lock lock(mutex_);
  Entry& entry = entries_[shard];
  const auto over = [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return ended_ || failed_; };
  changed_.wait(mutex_, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return over() || entry.first_batch >= 0; });
  if (entry.first_batch >= 0 && entry.turn >= asked_) {
    asked_ = entry.turn + 1;
    changed_.notify_all();
  }
  changed_.wait(mutex_,
                [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return over() || entry.cached.file || entry.error; });
  if (entry.cached.file) return entry.cached.file;
  if (entry.error) std::rethrow_exception(entry.error);
  if (failed_) std::rethrow_exception(failed_);
  throw Error("the epoch was ended");
}

std::string RemoteShards::distrust(std::size_t shard) {
  Lock lock(mutex_);
  const auto& held = entries_[shard].cached.held;
  if (!held) return "";
  if (!is_kept_damaged(held->folder)) mark_damaged(held->folder);
  return held->folder;
}

void RemoteShards::passed(std::int64_t batches) {
  Lock lock(mutex_);
  passed_ = batches;
  close_passed();
}

void RemoteShards::close_passed() {
  if (!walked_) return;
  for (auto at = here_.begin(); at != here_.end();) {
    const std::size_t shard = *at++;
    if (entries_[shard].last_batch < passed_) close(shard);
  }
}

void RemoteShards::close(std::size_t shard) {
  entries_[shard].cached = {};
  here_.erase(shard);
  try_again();
}

// What had no room may have it now, or is known never to have it.
void RemoteShards::try_again() {
  full_ = false;
  ++retries_;
  changed_.notify_all();
}

std::vector<std::string> RemoteShards::open() const {
  Lock lock(mutex_);
  std::vector<std::string> urls;
  for (const std::size_t shard : here_) urls.push_back(entries_[shard].cached.file->path());
  return urls;
}

void RemoteShards::walk(const Walk& walk, const Walk& guess) {
  name_thread("shard order");
  std::vector<std::size_t> shards;
  try {
    for (std::int64_t batch = 0; walk(shards); ++batch) {
      Lock lock(mutex_);
      if (!walking_) return;
      for (const std::size_t shard : shards) {
        Entry& entry = entries_[shard];
        if (std::exchange(entry.last_batch, batch) >= 0) continue;
        entry.first_batch = batch;
        entry.turn = order_.size();
        order_.push_back(shard);
        changed_.notify_all();
      }
    }
  } catch (...) {
    Lock lock(mutex_);
    failed_ = std::current_exception();
    changed_.notify_all();
    return;
  }
  {
    Lock lock(mutex_);
    walked_ = true;
    if (!guess_.empty())
      guess_holds_ = std::ranges::any_of(guess_, [this](std::size_t shard) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
        return entries_[shard].first_batch >= 0;
      });
    guess_.clear();
    close_passed();
    try_again();
  }
  if (guess) walk_on(guess);
}

// Finds the shards of the guess that this piece does not need.
void RemoteShards::walk_on(const Walk& guess) {
  std::vector<std::size_t> shards, found;
  try {
    while (found.size() < kAhead && guess(shards)) {
      Lock lock(mutex_);
      if (!walking_) return;
      for (const std::size_t shard : shards)
        if (found.size() < kAhead && entries_[shard].first_batch < 0 && std::ranges::count(found, shard) == 0)
          found.push_back(shard);
    }
  } catch (...) {
    return;  // a piece that has these batches will fail
  }
  Lock lock(mutex_);
  guess_ = found;
  if (guess_holds_) guesses_ = std::move(found);
  changed_.notify_all();
}

// A batch that asks for a shard needs those before it, too, or others need them that are made at the same time.
bool RemoteShards::may_fetch() const {
  return !taking_ && next_ < order_.size() && next_ < asked_ + (full_ ? 0 : kAhead);
}

void RemoteShards::work() {
  name_thread("fetch");
  for (;;) {
    std::size_t shard = 0;
    {
      Lock lock(mutex_);
      changed_.wait(mutex_, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return ended_ || may_fetch(); });
      if (ended_) return;
      shard = order_[next_++];
      taking_ = shard;
      ++fetching_;
    }
    fetch_with_patience(shard);
  }
}

// Shards of batches come first.
bool RemoteShards::may_fetch_guesses() const { return !guesses_.empty() && next_ == order_.size() && fetching_ == 0; }

void RemoteShards::work_on_guesses() {
  name_thread("fetch ahead");
  for (;;) {
    std::vector<std::size_t> shards;
    {
      Lock lock(mutex_);
      changed_.wait(mutex_, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return ended_ || may_fetch_guesses(); });
      if (ended_) return;
      shards.swap(guesses_);
      guessing_ = true;
      give_way_ = false;
    }
    const auto give_up = std::chrono::steady_clock::now() + patience_ / 2;  // others may wait for its room
    try {
      for (const std::size_t shard : shards)
        if (!fetch_guess(shard, give_up)) break;
    } catch (...) {  // a batch that needs the shard gets its own error
    }
    Lock lock(mutex_);
    guessing_ = false;
    try_again();
  }
}

// Returns false where there is no free room.
bool RemoteShards::fetch_guess(std::size_t shard, std::chrono::steady_clock::time_point give_up) {
  const detail::Tick tick = [&] {
    Lock lock(mutex_);
    const bool too_long = std::chrono::steady_clock::now() > give_up && entries_[shard].first_batch < 0;
    if (ended_ || give_way_ || too_long) throw Error("the shard may not be needed");
  };
  tick();
  const Shard& described = manifest_.shards[shard];
  const auto fill = [&](const std::string& folder) {
    fetch_shard(manifest_, name_, described, folder, OnDamage::kFail, tick);
  };
  return cache_.take(wanted(manifest_, described), fill, tick, {}, ShardCache::Room::kFree).has_value();
}

// Where shards in use leave no room: waits for this process as long as it will give some. Then it waits for other
// processes of the host.
void RemoteShards::fetch_with_patience(std::size_t shard) {
  auto give_up = std::chrono::steady_clock::now() + patience_;
  for (bool told = false;;) {
    std::uint64_t needed = 0;  // 0: not known yet
    std::uint64_t retries = 0;
    bool ended = false, waits_for_own = false;
    CachedShard fetched;
    std::exception_ptr error;
    {
      Lock lock(mutex_);
      retries = retries_;
    }
    try {
      fetched = fetch(shard);
    } catch (...) {
      error = std::current_exception();
    }
    {
      Lock lock(mutex_);
      if (error || fetched.held) return settle(shard, std::move(fetched), error);
      if (taking_ == shard && entries_[shard].turn >= asked_) {  // it is only read ahead
        --next_;
        --fetching_;
        full_ = true;
        return let_others_take_room(shard);
      }
      if (walked_) needed = bytes_needed_with(shard);
      give_way_ = guessing_;
      waits_for_own = retries != retries_ || guessing_ || room_will_come(shard);
      ended = ended_;
    }
    const auto now = std::chrono::steady_clock::now();
    if (waits_for_own) give_up = now + patience_;
    // Looking at the cache's folder takes its time.
    if (ended || now > give_up || cache_.is_too_small_for(needed)) {
      const IoError reason(cache_.no_room_for(wanted(manifest_, manifest_.shards[shard])));
      Lock lock(mutex_);
      return settle(shard, {}, std::make_exception_ptr(reason));
    }
    if (waits_for_own) {
      Lock lock(mutex_);
      changed_.wait_for(mutex_, kLongPause,
                        [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return ended_ || retries != retries_; });
      continue;
    }
    if (!std::exchange(told, true)) LOG(WARNING) << name_ << ": waits for room in the cache, which other processes use";
    std::this_thread::sleep_for(kPause);
  }
}

void RemoteShards::settle(std::size_t shard, CachedShard fetched, std::exception_ptr error) {
  Entry& entry = entries_[shard];
  entry.error = std::move(error);
  entry.cached = std::move(fetched);
  if (!entry.error) here_.insert(shard);
  --fetching_;
  let_others_take_room(shard);
  try_again();
}

void RemoteShards::let_others_take_room(std::size_t shard) {
  if (taking_ != shard) return;
  taking_.reset();
  changed_.notify_all();
}

// The bytes that are in use at the same time as the shard, of those that get their room before it. Two data sets may
// name the same shard, which the cache holds once.
std::uint64_t RemoteShards::bytes_needed_with(std::size_t shard) const {
  const Entry& entry = entries_[shard];
  const ShardCache::Wanted own = wanted(manifest_, manifest_.shards[shard]);
  std::uint64_t bytes = own.most_bytes();
  std::set<std::string> counted{own.key};
  for (std::size_t turn = 0; turn < entry.turn; ++turn) {
    const Entry& other = entries_[order_[turn]];
    if (other.last_batch < entry.first_batch) continue;
    const Shard& described = manifest_.shards[order_[turn]];
    if (!counted.insert(wanted(manifest_, described).key).second) continue;
    bytes += other.cached.held ? other.cached.held->bytes : described.bytes;
  }
  return bytes;
}

// Will this process give room to the shard? Batches before those that need it let go of others, and one that is still
// fetched keeps more room than its files will have.
bool RemoteShards::room_will_come(std::size_t shard) const {
  const Entry& entry = entries_[shard];
  if (!walked_) return true;
  return std::any_of(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(entry.turn),
                     [&](std::size_t before) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
                       const Entry& other = entries_[before];
                       return !other.error && other.last_batch >= passed_ &&
                              (!other.cached.file || other.last_batch < entry.first_batch);
                     });
}

CachedShard RemoteShards::fetch(std::size_t shard) {
  const detail::Tick tick = [this] {
    Lock lock(mutex_);
    if (ended_) throw Error("the epoch was ended");
  };
  const auto has_room = [this, shard] {
    Lock lock(mutex_);
    let_others_take_room(shard);
  };
  return open_in_cache(cache_, manifest_, name_, manifest_.shards[shard], on_damage_, has_room, tick);
}

}  // namespace paceline::io
