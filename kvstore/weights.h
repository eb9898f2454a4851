#pragma once
// The weights of a slice. Snapshots share them, so that a pull copies nothing; what a snapshot holds is not written to.

#include <paceline/detail/host_memory.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

namespace paceline {

// Not thread-safe, but snapshots may be let go on any thread.
class Weights {
 public:
  void assign(const std::byte* bytes, std::size_t size) {
    size_ = size;
    set(detail::allocate_host(size));
    if (size > 0) std::memcpy(bytes_.get(), bytes, size);
  }
  const std::byte* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  std::shared_ptr<const std::byte[]> share() const { return bytes_; }
  // They will be used soon. Thread-safe.
  void prefetch(std::size_t bytes) const {
    constexpr std::size_t kLine = 64;
    const std::byte* place = place_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(place + i, 1);
  }
  // Where the next weights may be written: in place of these, unless somebody holds these.
  std::shared_ptr<std::byte[]> writable() const {
    if (foreign_ || bytes_.use_count() != 1) return detail::allocate_host(size_);
    return bytes_;  // counted by an operation that comes after those of whoever let go
  }
  // Keeps what somebody else wrote and still may read: it is not written to.
  void adopt(std::shared_ptr<const std::byte[]> bytes) {
    set(std::const_pointer_cast<std::byte[]>(std::move(bytes)));
    foreign_ = true;
  }
  void set(std::shared_ptr<std::byte[]> bytes) {
    if (bytes_ == bytes) return;
    bytes_ = std::move(bytes);
    place_.store(bytes_.get(), std::memory_order_relaxed);
    foreign_ = false;
  }

 private:
  std::size_t size_ : 63 = 0, foreign_ : 1 = false;
  std::shared_ptr<std::byte[]> bytes_;
  std::atomic<const std::byte*> place_ = nullptr;
};

}  // namespace paceline
