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

constexpr std::size_t kFetchers = 2;  // so the first shard takes the time of two at most
constexpr std::size_t kAhead = 2;     // shards that are fetched before a batch needs them
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
    order_.clear();
    next_ = asked_ = 0;
    taking_.reset();
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
  full_ = false;
  changed_.notify_all();
}

std::vector<std::string> RemoteShards::open() const {
  Lock lock(mutex_);
  std::vector<std::string> urls;
  for (const std::size_t shard : here_) urls.push_back(entries_[shard].cached.file->path());
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
  Lock lock(mutex_);
  walked_ = true;
  close_passed();
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
    }
    fetch_with_patience(shard);
  }
}

// Where shards in use leave no room: waits for batches of this process that will let go of some, as long as that takes.
// Then it waits for other processes of the host.
void RemoteShards::fetch_with_patience(std::size_t shard) {
  auto give_up = std::chrono::steady_clock::now() + kPatience;
  for (bool told = false;;) {
    std::uint64_t needed = 0;  // 0: not known yet
    bool ended = false, batches_will_pass = false;
    CachedShard fetched;
    std::exception_ptr error;
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
        full_ = true;
        return let_others_take_room(shard);
      }
      if (walked_) needed = bytes_needed_with(shard);
      batches_will_pass = waits_for_batches(shard);
      ended = ended_;
    }
    if (batches_will_pass) give_up = std::chrono::steady_clock::now() + kPatience;
    // Looking at the cache's folder takes its time.
    if (ended || std::chrono::steady_clock::now() > give_up || cache_.is_too_small_for(needed)) {
      const IoError reason(cache_.no_room_for(wanted(manifest_, manifest_.shards[shard])));
      Lock lock(mutex_);
      return settle(shard, {}, std::make_exception_ptr(reason));
    }
    if (!batches_will_pass && !std::exchange(told, true))
      LOG(WARNING) << name_ << ": waits for room in the cache, which other processes use";
    std::this_thread::sleep_for(kPause);
  }
}

void RemoteShards::settle(std::size_t shard, CachedShard fetched, std::exception_ptr error) {
  Entry& entry = entries_[shard];
  entry.error = std::move(error);
  entry.cached = std::move(fetched);
  if (!entry.error) here_.insert(shard);
  let_others_take_room(shard);
  changed_.notify_all();
}

void RemoteShards::let_others_take_room(std::size_t shard) {
  if (taking_ != shard) return;
  taking_.reset();
  changed_.notify_all();
}

// The bytes that are in use at the same time as the shard, of those that get their room before it.
std::uint64_t RemoteShards::bytes_needed_with(std::size_t shard) const {
  const Entry& entry = entries_[shard];
  std::uint64_t bytes = wanted(manifest_, manifest_.shards[shard]).most_bytes();
  for (std::size_t turn = 0; turn < entry.turn; ++turn) {
    const Entry& other = entries_[order_[turn]];
    if (other.last_batch < entry.first_batch) continue;
    bytes += other.cached.held ? other.cached.held->bytes : manifest_.shards[order_[turn]].bytes;
  }
  return bytes;
}

// Will batches before those that need the shard let go of others?
bool RemoteShards::waits_for_batches(std::size_t shard) const {
  const Entry& entry = entries_[shard];
  if (!walked_) return true;
  return std::any_of(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(entry.turn),
                     [&](std::size_t before) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
                       const Entry& other = entries_[before];
                       return !other.error && other.last_batch >= passed_ && other.last_batch < entry.first_batch;
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
