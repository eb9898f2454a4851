#pragma once
// A mutex that clang's thread-safety analysis understands (libstdc++'s is not annotated). gcc ignores the macros.

#include <chrono>
#include <condition_variable>
#include <mutex>

// Annotations for clang's thread-safety analysis; nothing for other compilers. They say what a class is, which mutex
// guards a member, and which mutex a function needs, takes, releases or must not hold.
#ifdef __clang__
#define PACELINE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define PACELINE_THREAD_ANNOTATION(x)
#endif
#define PACELINE_CAPABILITY(x) PACELINE_THREAD_ANNOTATION(capability(x))
#define PACELINE_SCOPED_CAPABILITY PACELINE_THREAD_ANNOTATION(scoped_lockable)
#define PACELINE_GUARDED_BY(x) PACELINE_THREAD_ANNOTATION(guarded_by(x))
#define PACELINE_REQUIRES(...) PACELINE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define PACELINE_ACQUIRE(...) PACELINE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define PACELINE_RELEASE(...) PACELINE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define PACELINE_EXCLUDES(...) PACELINE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define PACELINE_NO_THREAD_SAFETY_ANALYSIS PACELINE_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace paceline {

// A std::mutex with annotations. Not recursive.
class PACELINE_CAPABILITY("mutex") Mutex {
 public:
  // Blocks until the calling thread holds the mutex, or gives it back.
  void lock() PACELINE_ACQUIRE() { mutex_.lock(); }
  void unlock() PACELINE_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Holds a Mutex from construction to destruction.
class PACELINE_SCOPED_CAPABILITY Lock {
 public:
  // Blocks until the mutex is free.
  explicit Lock(Mutex& mutex) PACELINE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() PACELINE_RELEASE() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits on a Mutex that the caller holds.
class CondVar {
 public:
  // Blocks until `ready()` holds. It is asked under the mutex, at first and after each notification.
  template <class Predicate>
  void wait(Mutex& mutex, Predicate ready) PACELINE_REQUIRES(mutex) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    condition_.wait(mutex, ready);
  }
  // The same for at most `timeout`. False if that has passed and `ready()` is still false.
  template <class Predicate>
  bool wait_for(Mutex& mutex, std::chrono::nanoseconds timeout, Predicate ready)
      PACELINE_REQUIRES(mutex) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_for(mutex, timeout, ready);
  }
  // Wakes one waiting thread, or all of them. The caller need not hold the mutex.
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace paceline
