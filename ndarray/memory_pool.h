#pragma once
// Reuse of freed memory, one pool per device and kind of memory. Sizes are rounded up to classes, eight to each power
// of two, so that a block serves requests up to an eighth smaller.

#include <paceline/detail/device_runtime.h>
#include <paceline/detail/spin_lock.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace paceline::detail {

class MemoryPool;

// A block of device memory that goes back to its pool. Move-only; empty when default-constructed.
class PoolBlock {
 public:
  PoolBlock() = default;
  // Throws NotAvailable, OutOfMemory.
  PoolBlock(Device device, MemoryKind kind, std::size_t bytes);
  PoolBlock(PoolBlock&& other) noexcept { swap(other); }
  PoolBlock& operator=(PoolBlock&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PoolBlock();

  void* data() const { return memory_; }

 private:
  void swap(PoolBlock& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
  }

  MemoryPool* pool_ = nullptr;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

struct MemoryPoolStatistics {
  std::int64_t bytes_in_use = 0;
  std::int64_t bytes_cached = 0;
  std::int64_t peak_bytes_in_use = 0;
  std::int64_t allocations = 0;  // requests
  std::int64_t reused = 0;       // requests served from freed blocks
};

// Thread-safe. Blocks are given back when no task uses them any more, so they can be reused at once.
//
// Bound: what is in use and cached together stays below 5/4 of the peak in use plus `slack` bytes; the block that was
// freed longest ago goes first. A pool with `caching` off hands everything straight through.
class MemoryPool {
 public:
  MemoryPool(DeviceRuntime& runtime, MemoryKind kind, bool caching = true, std::int64_t slack = std::int64_t{64} << 20)
      : runtime_(runtime), kind_(kind), caching_(caching), slack_(slack) {}
  ~MemoryPool() { trim(); }
  MemoryPool(const MemoryPool&) = delete;

  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }
  // At least 64-byte aligned, never null. Where the device is full, what is cached is given back and asked for again.
  // An asynchronous device may hold blocks for work that is about to end: as long as others release some within a
  // second (`patience`), this waits for them, up to half a minute (30 times `patience`). An OutOfMemory says what holds
  // the memory.
  void* allocate(std::size_t bytes);
  // `bytes` is what was asked for. May run on a thread that must not call the device, so on asynchronous devices
  // surplus blocks are given back by the next allocate().
  void release(void* memory, std::size_t bytes) noexcept;

  // Gives all cached blocks back to the device.
  void trim();
  MemoryPoolStatistics statistics() const;
  // The most bytes in use at once since the last call; counting begins anew.
  std::int64_t restart_peak();

  static std::size_t size_class(std::size_t bytes);

 private:
  struct Free {
    void* memory;
    std::int64_t freed_at;
  };
  // The blocks of one size class.
  struct SizeClass {
    std::deque<Free> free;  // oldest first
    std::int64_t in_use = 0;
  };
  using Surplus = std::vector<std::pair<void*, std::size_t>>;

  // What could not be had makes no peak.
  void note_peak() PACELINE_REQUIRES(lock_);
  Surplus take_surplus() PACELINE_REQUIRES(lock_);
  void give_back(const Surplus& surplus);
  void forget(std::size_t rounded) PACELINE_EXCLUDES(lock_);  // a block that was counted and not given
  void* allocate_when_free(std::size_t rounded) PACELINE_EXCLUDES(lock_);
  bool releases_after(std::int64_t before) const;  // waits for one that is not among the first `before`
  std::string largest_holders() const PACELINE_EXCLUDES(lock_);

  DeviceRuntime& runtime_;
  const MemoryKind kind_;
  const bool caching_;
  const std::int64_t slack_;
  // Held for less time than a thread takes to fall asleep: with a Mutex, threads that share a pool mostly do that.
  mutable SpinLock lock_;
  std::map<std::size_t, SizeClass> classes_ PACELINE_GUARDED_BY(lock_);
  std::int64_t clock_ PACELINE_GUARDED_BY(lock_) = 0;
  MemoryPoolStatistics statistics_ PACELINE_GUARDED_BY(lock_);
  std::int64_t recent_peak_ PACELINE_GUARDED_BY(lock_) = 0;
  std::chrono::milliseconds patience_{1000};
  std::atomic<std::int64_t> releases_ = 0;
};

// The pool of a device, beside its runtime: lives until the process ends. Throws NotAvailable. The simulated devices'
// pools do not cache, so that their runtime sees every release and can check that nobody writes afterwards.
MemoryPool& memory_pool(Device device, MemoryKind kind = MemoryKind::kNormal);

}  // namespace paceline::detail
