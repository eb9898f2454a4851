#pragma once
// The weights of a slice. Snapshots share them, so that a pull copies nothing; what a snapshot holds is not written to.

#include <paceline/detail/host_memory.h>

#include <atomic>
#include <cstring>
#include <memory>

namespace paceline {

// Not thread-safe, but snapshots may be let go on any thread.
class Weights {
 public:
  void assign(const std::byte* bytes, std::size_t size) {
    size_ = size;
    set(detail::allocate_host(size));
    if (size > 0) std::memcpy(memory_->bytes.get(), bytes, size);
  }
  const std::byte* data() const { return data_.load(std::memory_order_relaxed); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  std::shared_ptr<const std::byte[]> share() {
    std::shared_ptr<const std::byte[]> shared = shared_.lock();
    if (shared) return shared;
    const auto lease = std::make_shared<const Lease>(memory_);
    shared = {lease, data()};
    shared_ = shared;
    return shared;
  }
  // They will be used soon. Thread-safe.
  void prefetch(std::size_t bytes) const {
    constexpr std::size_t kLine = 64;
    const std::byte* data = data_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(data + i, 1);
  }
  // Where the next weights may be written: in place of these, unless somebody holds these.
  std::shared_ptr<std::byte[]> writable() const {
    return memory_->leases.load(std::memory_order_acquire) == 0 ? memory_->bytes : detail::allocate_host(size_);
  }
  // Keeps what somebody else wrote and still may read: it is not written to.
  void adopt(std::shared_ptr<const std::byte[]> bytes) {
    set(std::const_pointer_cast<std::byte[]>(std::move(bytes)));
    memory_->leases = 1;
  }
  void set(std::shared_ptr<std::byte[]> bytes) {
    if (memory_ && memory_->bytes == bytes) return;
    memory_ = std::make_shared<Memory>();
    memory_->bytes = std::move(bytes);
    data_.store(memory_->bytes.get(), std::memory_order_relaxed);
    shared_.reset();
  }

 private:
  struct Memory {
    std::shared_ptr<std::byte[]> bytes;
    std::atomic<int> leases = 0;
  };
  struct Lease {
    explicit Lease(std::shared_ptr<Memory> of) : memory(std::move(of)) { ++memory->leases; }
    ~Lease() { memory->leases.fetch_sub(1, std::memory_order_release); }
    Lease(const Lease&) = delete;
    const std::shared_ptr<Memory> memory;
  };

  std::size_t size_ = 0;
  std::atomic<std::byte*> data_ = nullptr;
  std::shared_ptr<Memory> memory_;
  std::weak_ptr<const std::byte[]> shared_;
};

}  // namespace paceline
