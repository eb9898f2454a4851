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

#include "open_shard.h"
#include "remote/fetch_shard.h"

namespace paceline::io {
namespace {

constexpr std::size_t kFetchers = 2;  // so the first shard takes the time of two at most
constexpr std::size_t kAhead = 2;     // shards that are fetched before somebody asks
constexpr auto kPatience = std::chrono::minutes(5);
constexpr auto kPause = std::chrono::milliseconds(50);

}  // namespace

RemoteShards::RemoteShards(const Manifest& manifest, std::string name, OnDamage on_damage)
    : manifest_(manifest), name_(std::move(name)), on_damage_(on_damage) {}

void RemoteShards::begin(Walk walk) {
  end();
  {
    Lock lock(mutex_);
    entries_.clear();
    entries_.resize(manifest_.shards.size());
    urgent_.clear();
    queue_.clear();
    ahead_.clear();
    here_.clear();
    passed_ = 0;
    walked_ = full_ = ended_ = false;
    failed_ = nullptr;
  }
  threads_.push_back(detail::start_thread("the order of shards", [this, walk = std::move(walk)] { this->walk(walk); }));
  for (std::size_t i = 0; i < kFetchers; ++i)
    threads_.push_back(detail::start_thread("fetching shards", [this] { work(); }));
}

void RemoteShards::end() {
  {
    Lock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::shared_ptr<const RecordFile> RemoteShards::file(std::size_t shard) {
  Lock lock(mutex_);
  Entry& entry = entries_[shard];
  if (!entry.used) {
    entry.used = true;
    ahead_.erase(shard);
    changed_.notify_all();  // there is room for another
  }
  if (entry.state == State::kUnknown || entry.state == State::kWaiting) {
    entry.state = State::kWaiting;
    urgent_.push_back(shard);
    changed_.notify_all();
  }
  changed_.wait(mutex_, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    return ended_ || failed_ || entry.state == State::kHere || entry.state == State::kFailed;
  });
  if (entry.state == State::kHere) return entry.file;
  if (entry.state == State::kFailed) std::rethrow_exception(entry.error);
  if (failed_) std::rethrow_exception(failed_);
  throw Error("the epoch was ended");
}

std::string RemoteShards::distrust(std::size_t shard) {
  Lock lock(mutex_);
  const auto& held = entries_[shard].held;
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
  Entry& entry = entries_[shard];
  entry.state = State::kUnknown;
  entry.used = false;
  entry.file.reset();
  entry.held.reset();
  here_.erase(shard);
  ahead_.erase(shard);
  full_ = false;
  changed_.notify_all();
}

std::vector<std::string> RemoteShards::open() const {
  Lock lock(mutex_);
  std::vector<std::string> urls;
  for (const std::size_t shard : here_) urls.push_back(entries_[shard].file->path());
  return urls;
}

void RemoteShards::walk(const Walk& walk) {
  name_thread("shard order");
  std::vector<std::size_t> shards;
  try {
    for (std::int64_t batch = 0; walk(shards); ++batch) {
      Lock lock(mutex_);
      if (ended_) return;
      for (const std::size_t shard : shards) {
        Entry& entry = entries_[shard];
        const bool first = std::exchange(entry.last_batch, batch) < 0;
        if (first) entry.first_batch = batch;
        if (!first || entry.state != State::kUnknown) continue;
        entry.state = State::kWaiting;
        queue_.push_back(shard);
        changed_.notify_all();
      }
    }
  } catch (...) {
    Lock lock(mutex_);
    failed_ = std::current_exception();
    changed_.notify_all();
    return;
  }
  Lock lock(mutex_);
  walked_ = true;
  close_passed();
}

bool RemoteShards::choose(std::size_t& shard) {
  const auto take = [&](std::deque<std::size_t>& from) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    while (!from.empty()) {
      shard = from.front();
      from.pop_front();
      if (entries_[shard].state == State::kWaiting) return true;  // else it was in both
    }
    return false;
  };
  return take(urgent_) || (!full_ && ahead_.size() < kAhead && take(queue_));
}

// There is no room. True where this process has made some. What is only read ahead goes back into the queue.
bool RemoteShards::retreat(std::size_t shard) {
  if (!entries_[shard].used) {
    entries_[shard].state = State::kWaiting;
    queue_.push_front(shard);
    ahead_.erase(shard);
    full_ = true;
    changed_.notify_all();
    return false;
  }
  bool made_room = false;
  for (auto at = here_.begin(); at != here_.end();) {
    const std::size_t other = *at++;
    if (entries_[other].used) continue;
    close(other);
    entries_[other].state = State::kWaiting;
    queue_.push_front(other);
    made_room = full_ = true;
  }
  if (made_room) return true;
  const auto fetching = [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    return std::ranges::any_of(ahead_, [&](std::size_t other) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
      return entries_[other].state == State::kFetching;
    });
  };
  if (!fetching()) return false;
  changed_.wait(mutex_, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return ended_ || !fetching(); });
  return true;
}

void RemoteShards::work() {
  name_thread("fetch");
  for (;;) {
    std::size_t shard = 0;
    {
      Lock lock(mutex_);
      changed_.wait(mutex_, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return ended_ || choose(shard); });
      if (ended_) return;
      entries_[shard].state = State::kFetching;
      if (!entries_[shard].used) ahead_.insert(shard);
    }
    fetch_with_patience(shard);
  }
}

// Where shards in use leave no room: gives up what was read ahead, then waits for other processes of the host.
void RemoteShards::fetch_with_patience(std::size_t shard) {
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  for (bool told = false;;) {
    std::uint64_t needed = 0;  // 0: not known yet
    bool ended = false;
    Fetched fetched;
    std::exception_ptr error;
    try {
      fetched = fetch(shard);
    } catch (...) {
      error = std::current_exception();
    }
    {
      Lock lock(mutex_);
      if (error || fetched.held) return settle(shard, std::move(fetched), error);
      if (retreat(shard)) continue;
      if (!entries_[shard].used) return;
      if (walked_) needed = bytes_needed_with(shard);
      ended = ended_;
    }
    // Looking at the cache's folder takes its time.
    if (ended || std::chrono::steady_clock::now() > give_up || cache_.is_too_small_for(needed)) {
      const IoError reason(cache_.no_room_for(wanted(manifest_, manifest_.shards[shard])));
      Lock lock(mutex_);
      return settle(shard, {}, std::make_exception_ptr(reason));
    }
    if (!std::exchange(told, true)) LOG(WARNING) << name_ << ": waits for room in the cache, which other processes use";
    std::this_thread::sleep_for(kPause);
  }
}

void RemoteShards::settle(std::size_t shard, Fetched fetched, std::exception_ptr error) {
  Entry& entry = entries_[shard];
  entry.error = std::move(error);
  entry.held = std::move(fetched.held);
  entry.file = std::move(fetched.file);
  entry.state = entry.error ? State::kFailed : State::kHere;
  if (!entry.error) here_.insert(shard);
  changed_.notify_all();
}

// The bytes that are in use at the same time as the shard. Those that only earlier batches use are closed before.
std::uint64_t RemoteShards::bytes_needed_with(std::size_t shard) const {
  std::uint64_t bytes = wanted(manifest_, manifest_.shards[shard]).most_bytes();
  for (const std::size_t other : here_)
    if (entries_[other].last_batch >= entries_[shard].first_batch) bytes += manifest_.shards[other].bytes;
  return bytes;
}

RemoteShards::Fetched RemoteShards::fetch(std::size_t number) {
  const Shard& shard = manifest_.shards[number];
  const detail::Tick tick = [this] {
    Lock lock(mutex_);
    if (ended_) throw Error("the epoch was ended");
  };
  const ShardCache::Wanted key = wanted(manifest_, shard);
  const auto fill = [&](const std::string& folder) { fetch_shard(manifest_, name_, shard, folder, on_damage_, tick); };
  for (bool once_more = true;;) {
    Fetched result{cache_.take(key, fill, tick), nullptr};
    if (!result.held) return result;
    if (!result.held->fetched && is_kept_damaged(result.held->folder) && std::exchange(once_more, false)) {
      // The other host may have the right bytes by now.
      result.held.reset();
      cache_.drop(key.key);
      continue;
    }
    try {
      result.file = open_shard(manifest_, name_, shard, result.held->folder + "/shard.rec", on_damage_);
      return result;
    } catch (const Corrupt&) {
      // A copy of an earlier run may have been damaged since.
      const bool fetched = result.held->fetched;
      result.held.reset();
      if (!cache_.drop(key.key) || fetched) throw;
    }
  }
}

}  // namespace paceline::io
