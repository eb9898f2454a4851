#pragma once
// A lock of one byte for a few instructions' work, one per variable.

#include <paceline/mutex.h>

#include <atomic>

#include <sched.h>

namespace paceline::detail {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class PACELINE_CAPABILITY("mutex") SpinLock {
 public:
  void lock() PACELINE_ACQUIRE() {
    while (locked_.exchange(true, std::memory_order_acquire)) {
      // The holder may have lost its core, so do not burn ours.
      for (int spin = 0; locked_.load(std::memory_order_relaxed); ++spin)
        spin < kSpins ? pause_briefly() : static_cast<void>(sched_yield());
    }
  }
  void unlock() PACELINE_RELEASE() { locked_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpins = 64;
  std::atomic<bool> locked_ = false;
};

class PACELINE_SCOPED_CAPABILITY SpinGuard {
 public:
  explicit SpinGuard(SpinLock& lock) PACELINE_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  ~SpinGuard() PACELINE_RELEASE() { lock_.unlock(); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace paceline::detail
