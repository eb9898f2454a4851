#include "memory_pool.h"

#include <paceline/error.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace paceline::detail {
namespace {

constexpr int kMostWaits = 30;  // times `patience`: others may release for ever, and never enough

// The bytes as text, such as "1.5 MB".
std::string amount(std::size_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace

std::size_t MemoryPool::size_class(std::size_t bytes) {
  constexpr std::size_t kSmallest = 512;  // up to this, sizes are multiples of a cache line of 64 bytes
  if (bytes <= kSmallest) return std::max<std::size_t>((bytes + 63) / 64 * 64, 64);
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

void* MemoryPool::allocate(std::size_t bytes) {
  const std::size_t rounded = size_class(bytes);
  void* memory = nullptr;
  Surplus surplus;
  {
    const SpinGuard lock(lock_);
    ++statistics_.allocations;
    statistics_.bytes_in_use += static_cast<std::int64_t>(rounded);
    SizeClass& blocks = classes_[rounded];
    ++blocks.in_use;
    Surplus unusable;
    while (!memory && !blocks.free.empty()) {
      void* const kept = blocks.free.back().memory;
      blocks.free.pop_back();
      statistics_.bytes_cached -= static_cast<std::int64_t>(rounded);
      if (runtime_.is_reusable(kept, rounded))
        memory = kept;
      else
        unusable.emplace_back(kept, rounded);
    }
    if (memory) {
      ++statistics_.reused;
      note_peak();
    }
    surplus = take_surplus();
    surplus.insert(surplus.end(), unusable.begin(), unusable.end());
  }
  give_back(surplus);
  if (memory) return memory;
  try {
    memory = allocate_when_free(rounded);
  } catch (const OutOfMemory& error) {
    forget(rounded);
    throw OutOfMemory(str(error.what(), "; asked for ", amount(rounded), "; ", largest_holders()));
  } catch (...) {
    forget(rounded);
    throw;
  }
  const SpinGuard lock(lock_);
  note_peak();
  return memory;
}

void* MemoryPool::allocate_when_free(std::size_t rounded) {
  try {
    return runtime_.allocate(rounded, kind_, nullptr);
  } catch (const OutOfMemory&) {
  }
  const auto deadline = std::chrono::steady_clock::now() + kMostWaits * patience_;
  for (;;) {
    const std::int64_t before = releases_.load(std::memory_order_acquire);
    trim();
    try {
      return runtime_.allocate(rounded, kind_, nullptr);
    } catch (const OutOfMemory&) {
      const bool waits = runtime_.asynchronous() && std::chrono::steady_clock::now() < deadline;
      if (!waits || !releases_after(before)) throw;
    }
  }
}

bool MemoryPool::releases_after(std::int64_t before) const {
  for (auto waited = std::chrono::milliseconds(0); waited < patience_; ++waited) {
    if (releases_.load(std::memory_order_acquire) != before) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void MemoryPool::note_peak() {
  statistics_.peak_bytes_in_use = std::max(statistics_.peak_bytes_in_use, statistics_.bytes_in_use);
  recent_peak_ = std::max(recent_peak_, statistics_.bytes_in_use);
}

void MemoryPool::forget(std::size_t rounded) {
  const SpinGuard lock(lock_);
  statistics_.bytes_in_use -= static_cast<std::int64_t>(rounded);
  --classes_[rounded].in_use;
}

void MemoryPool::release(void* memory, std::size_t bytes) noexcept {
  const std::size_t rounded = size_class(bytes);
  Surplus surplus;
  {
    const SpinGuard lock(lock_);
    statistics_.bytes_in_use -= static_cast<std::int64_t>(rounded);
    SizeClass& blocks = classes_[rounded];
    --blocks.in_use;
    if (caching_) {
      blocks.free.push_back({memory, ++clock_});
      statistics_.bytes_cached += static_cast<std::int64_t>(rounded);
      if (!runtime_.asynchronous()) surplus = take_surplus();
    } else {
      surplus.emplace_back(memory, rounded);
    }
  }
  give_back(surplus);
  releases_.fetch_add(1, std::memory_order_release);
}

MemoryPool::Surplus MemoryPool::take_surplus() {
  const std::int64_t peak = std::max(statistics_.peak_bytes_in_use, statistics_.bytes_in_use);
  const std::int64_t bound = peak / 4 * 5 + slack_;
  Surplus surplus;
  while (statistics_.bytes_in_use + statistics_.bytes_cached > bound && statistics_.bytes_cached > 0) {
    auto oldest = classes_.end();
    for (auto blocks = classes_.begin(); blocks != classes_.end(); ++blocks)
      if (!blocks->second.free.empty() &&
          (oldest == classes_.end() || blocks->second.free.front().freed_at < oldest->second.free.front().freed_at))
        oldest = blocks;
    surplus.emplace_back(oldest->second.free.front().memory, oldest->first);
    oldest->second.free.pop_front();
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
    const SpinGuard lock(lock_);
    for (auto& [bytes, blocks] : classes_) {
      for (const Free& block : blocks.free) surplus.emplace_back(block.memory, bytes);
      blocks.free.clear();
    }
    statistics_.bytes_cached = 0;
  }
  give_back(surplus);
}

std::string MemoryPool::largest_holders() const {
  constexpr std::size_t kMost = 5;
  const SpinGuard lock(lock_);
  std::vector<std::pair<std::size_t, std::int64_t>> held;  // bytes of all blocks of a class, and their number
  std::int64_t count = 0;
  for (const auto& [bytes, blocks] : classes_)
    if (blocks.in_use > 0) {
      held.emplace_back(bytes * static_cast<std::size_t>(blocks.in_use), blocks.in_use);
      count += blocks.in_use;
    }
  std::sort(held.rbegin(), held.rend());
  std::string text = str("in use ", amount(static_cast<std::size_t>(statistics_.bytes_in_use)), " in ", count,
                         count == 1 ? " block" : " blocks");
  for (std::size_t i = 0; i < std::min(held.size(), kMost); ++i)
    text += str(i == 0 ? ", most of it in " : ", ", held[i].second, " of ",
                amount(held[i].first / static_cast<std::size_t>(held[i].second)));
  return text;
}

std::int64_t MemoryPool::restart_peak() {
  const SpinGuard lock(lock_);
  return std::exchange(recent_peak_, statistics_.bytes_in_use);
}

MemoryPoolStatistics MemoryPool::statistics() const {
  const SpinGuard lock(lock_);
  return statistics_;
}

MemoryPool& memory_pool(Device device, MemoryKind kind) {
  struct Pools {
    Mutex mutex;
    std::map<std::pair<Device, MemoryKind>, std::unique_ptr<MemoryPool>> pools PACELINE_GUARDED_BY(mutex);
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
