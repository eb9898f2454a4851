#pragma once
// Host memory that other processes of this user on this host can read in place. It has no name: what maps it holds it,
// so nothing is left behind whenever a process ends. Not installed.

#include <paceline/mutex.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace paceline::detail {

// Blocks below this stay with the C library: a message copies them sooner than it hands them over.
constexpr std::size_t kSmallestShared = std::size_t{32} << 10;

// One per process. As large as the memory that the process may use, and empty: pages exist once they are written, or
// once all that a large page would hold is handed out, for then it becomes one where the system can do that.
// Thread-safe. A child of fork() shares what its parent has in it.
class SharedHeap {
 public:
  // Makes the heap at the first call; from then on large arrays of the CPU lie in it. Null where the system has none to
  // give, and `why` says so. `most`: a bound on its size, for tests.
  static SharedHeap* enable(std::string& why, std::size_t most = SIZE_MAX);
  // Null before enable().
  static SharedHeap* enabled();

  // Aligned to pages; null when full.
  void* allocate(std::size_t bytes);
  // allocate() has found no room for so many bytes, and nothing was released since.
  bool has_refused(std::size_t bytes) const { return bytes >= refused_.load(std::memory_order_relaxed); }
  // Gives the pages back to the system.
  void release(void* memory, std::size_t bytes);

  bool contains(const void* data, std::size_t bytes) const;
  std::size_t offset_of(const void* data) const { return static_cast<std::size_t>(at(data) - base_); }
  const std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }

 private:
  SharedHeap(int descriptor, std::byte* base, std::size_t bytes);
  void use_large_pages(std::size_t offset, std::size_t bytes) PACELINE_REQUIRES(mutex_);
  static const std::byte* at(const void* data) { return static_cast<const std::byte*>(data); }

  const int descriptor_;
  std::byte* const base_;
  const std::size_t bytes_;
  std::atomic<std::size_t> refused_ = SIZE_MAX;  // the fewest bytes that there was no room for
  Mutex mutex_;
  std::map<std::size_t, std::size_t> free_ PACELINE_GUARDED_BY(mutex_);  // offset -> bytes; neighbours are joined
};

// Another process's heap, read only; or this process's own.
class SharedView {
 public:
  // Null where it cannot be read (it is gone, of another user, in another container), and `why` says so. Nothing that
  // the owner does can take the memory away from under a reader.
  static std::shared_ptr<const SharedView> open(pid_t process, int descriptor, std::size_t bytes, std::string& why);
  ~SharedView();
  SharedView(const SharedView&) = delete;

  const std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // The process whose heap it is has not ended.
  bool owner_lives() const;

 private:
  SharedView(int process, const std::byte* data, std::size_t bytes) : process_(process), data_(data), bytes_(bytes) {}

  const int process_;  // descriptor of the owner; -1: this process
  const std::byte* const data_;
  const std::size_t bytes_;
};

}  // namespace paceline::detail
