#include "open_shards.h"

#include <paceline/detail/in_parallel.h>
#include <paceline/error.h>

#include <algorithm>

#include "file.h"
#include "open_shard.h"

namespace paceline::io {

void OpenShards::begin(const std::vector<std::size_t>& shards, std::size_t most, int threads) {
  {
    Lock lock(mutex_);
    most_ = std::max<std::size_t>(1, most);
    // Open ones that are not needed soon make room for those that are.
    const std::size_t soon = std::min(most_, shards.size());
    for (std::size_t i = 0; i < soon; ++i)
      if (const auto known = entries_.find(shards[i]); known != entries_.end()) known->second.used = ++uses_;
    close_those_too_many();
  }
  detail::in_parallel(shards.size(), threads, [&](std::size_t i) {
    if (i < most)
      get(shards[i]);
    else
      check_size(manifest_.shards[shards[i]], InputFile(manifest_.path_of(manifest_.shards[shards[i]])).size());
  });
}

std::shared_ptr<const RecordFile> OpenShards::get(std::size_t shard) {
  std::shared_ptr<Slot> slot;
  {
    Lock lock(mutex_);
    Entry& entry = entries_[shard];
    if (!entry.slot) entry.slot = std::make_shared<Slot>();
    slot = entry.slot;
    entry.used = ++uses_;
    close_those_too_many();
  }
  try {
    Lock lock(slot->mutex);
    if (!slot->file) slot->file = open(manifest_.shards[shard]);
    return slot->file;
  } catch (...) {
    Lock lock(mutex_);
    if (const auto known = entries_.find(shard); known != entries_.end() && known->second.slot == slot)
      entries_.erase(known);
    throw;
  }
}

void OpenShards::close_those_too_many() {
  while (entries_.size() > most_) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(),
                                         [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    entries_.erase(oldest);
  }
}

std::vector<std::string> OpenShards::paths() const {
  std::vector<std::string> paths;
  Lock lock(mutex_);
  for (const auto& [shard, entry] : entries_) paths.push_back(manifest_.path_of(manifest_.shards[shard]));
  return paths;
}

std::shared_ptr<const RecordFile> OpenShards::open(const Shard& shard) const {
  const OnDamage on_damage = strict_ ? OnDamage::kFail : OnDamage::kSkip;
  return open_shard(manifest_, path_, shard, manifest_.path_of(shard), on_damage);
}

void OpenShards::check_size(const Shard& shard, std::uint64_t bytes) const {
  if (bytes != shard.bytes && strict_) {
    throw Corrupt(str(manifest_.path_of(shard), " has ", bytes, " bytes, the manifest ", path_, " says ", shard.bytes));
  }
}

}  // namespace paceline::io
