#include "memory_pool.h"

#include <paceline/error.h>

#include <algorithm>
#include <utility>
#include <bit>
#include <memory>
#include <vector>

namespace paceline::detail {

std::size_t MemoryPool::size_class(std::size_t bytes) {
  constexpr std::size_t kSmallest = 512;  // below, steps of a 64-byte line
  if (bytes <= kSmallest) return std::max<std::size_t>((bytes + 63) / 64 * 64, 64);
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

void* MemoryPool::allocate(std::size_t bytes) {
  const std::size_t rounded = size_class(bytes);
  void* memory = nullptr;
  Surplus surplus;
  {
    const Lock lock(mutex_);
    ++statistics_.allocations;
    statistics_.bytes_in_use += static_cast<std::int64_t>(rounded);
    const auto found = free_.find(rounded);
    if (found != free_.end() && !found->second.empty()) {
      memory = found->second.back().memory;
      found->second.pop_back();
      ++statistics_.reused;
      statistics_.bytes_cached -= static_cast<std::int64_t>(rounded);
      note_peak();
    }
    surplus = take_surplus();
  }
  give_back(surplus);
  if (memory) return memory;
  try {
    try {
      memory = runtime_.allocate(rounded, kind_, nullptr);
    } catch (const OutOfMemory&) {
      trim();
      memory = runtime_.allocate(rounded, kind_, nullptr);
    }
  } catch (...) {
    const Lock lock(mutex_);
    statistics_.bytes_in_use -= static_cast<std::int64_t>(rounded);
    throw;
  }
  const Lock lock(mutex_);
  note_peak();
  return memory;
}

void MemoryPool::note_peak() {
  statistics_.peak_bytes_in_use = std::max(statistics_.peak_bytes_in_use, statistics_.bytes_in_use);
  recent_peak_ = std::max(recent_peak_, statistics_.bytes_in_use);
}

void MemoryPool::release(void* memory, std::size_t bytes) noexcept {
  const std::size_t rounded = size_class(bytes);
  Surplus surplus;
  {
    const Lock lock(mutex_);
    statistics_.bytes_in_use -= static_cast<std::int64_t>(rounded);
    if (caching_) {
      free_[rounded].push_back({memory, ++clock_});
      statistics_.bytes_cached += static_cast<std::int64_t>(rounded);
      if (!runtime_.asynchronous()) surplus = take_surplus();
    } else {
      surplus.emplace_back(memory, rounded);
    }
  }
  give_back(surplus);
}

MemoryPool::Surplus MemoryPool::take_surplus() {
  const std::int64_t peak = std::max(statistics_.peak_bytes_in_use, statistics_.bytes_in_use);
  const std::int64_t bound = peak / 4 * 5 + slack_;
  Surplus surplus;
  while (statistics_.bytes_in_use + statistics_.bytes_cached > bound && statistics_.bytes_cached > 0) {
    auto oldest = free_.end();
    for (auto list = free_.begin(); list != free_.end(); ++list)
      if (!list->second.empty() &&
          (oldest == free_.end() || list->second.front().freed_at < oldest->second.front().freed_at))
        oldest = list;
    surplus.emplace_back(oldest->second.front().memory, oldest->first);
    oldest->second.pop_front();
    statistics_.bytes_cached -= static_cast<std::int64_t>(oldest->first);
  }
  return surplus;
}

void MemoryPool::give_back(const Surplus& surplus) {
  for (const auto& [memory, bytes] : surplus) runtime_.release(memory, bytes, kind_, nullptr);
}

void MemoryPool::trim() {
  Surplus surplus;
  {
    const Lock lock(mutex_);
    for (auto& [bytes, blocks] : free_)
      for (const Free& block : blocks) surplus.emplace_back(block.memory, bytes);
    free_.clear();
    statistics_.bytes_cached = 0;
  }
  give_back(surplus);
}

std::int64_t MemoryPool::restart_peak() {
  const Lock lock(mutex_);
  return std::exchange(recent_peak_, statistics_.bytes_in_use);
}

MemoryPoolStatistics MemoryPool::statistics() const {
  const Lock lock(mutex_);
  return statistics_;
}

MemoryPool& memory_pool(Device device, MemoryKind kind) {
  struct Pools {
    Mutex mutex;
    std::map<std::pair<Device, MemoryKind>, std::unique_ptr<MemoryPool>> pools GUARDED_BY(mutex);
  };
  // Never destroyed: arrays with static storage duration give their memory back after main().
  static Pools& all = *new Pools;
  const Lock lock(all.mutex);
  std::unique_ptr<MemoryPool>& pool = all.pools[{device, kind}];
  if (!pool) pool = std::make_unique<MemoryPool>(runtime(device), kind, device.kind != DeviceKind::kSim);
  return *pool;
}

PoolBlock::PoolBlock(Device device, MemoryKind kind, std::size_t bytes)
    : pool_(&memory_pool(device, kind)), memory_(pool_->allocate(bytes)), bytes_(bytes) {}

PoolBlock::~PoolBlock() {
  if (pool_) pool_->release(memory_, bytes_);
}

}  // namespace paceline::detail
