#pragma once
// A mutex of four bytes, because each slice has one. A waiting thread sleeps, because updates may take long.

#include <paceline/mutex.h>

#include <atomic>
#include <cstdint>

namespace paceline {

class PACELINE_CAPABILITY("mutex") SliceMutex {
 public:
  void lock() PACELINE_ACQUIRE() {
    std::uint32_t free = kFree;
    if (state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) return;
    // A thread that has slept does not know whether others still sleep, so it must mark the mutex as awaited.
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree)
      state_.wait(kAwaited, std::memory_order_relaxed);
  }
  void unlock() PACELINE_RELEASE() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) state_.notify_one();
  }

 private:
  static constexpr std::uint32_t kFree = 0, kHeld = 1, kAwaited = 2;
  std::atomic<std::uint32_t> state_ = kFree;
};

class PACELINE_SCOPED_CAPABILITY SliceLock {
 public:
  explicit SliceLock(SliceMutex& mutex) PACELINE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~SliceLock() PACELINE_RELEASE() { mutex_.unlock(); }
  SliceLock(const SliceLock&) = delete;
  SliceLock& operator=(const SliceLock&) = delete;

 private:
  SliceMutex& mutex_;
};

}  // namespace paceline
