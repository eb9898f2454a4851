#pragma once
// The weights of a slice. Large ones are shared with snapshots, so that a pull copies nothing; what a snapshot holds is
// not written to. Small ones lie side by side in a slab, with nothing beside each, and snapshots are copies. Large ones
// may also lie in a caller's array, who says when that is written to: of those, too, snapshots are copies.

#include <paceline/detail/host_memory.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace paceline {

// Memory that is given back all at once. Not thread-safe.
class Slab {
 public:
  // Aligned to 16 bytes, sizes of whole cache lines to those. Of at most kMost bytes.
  static constexpr std::size_t kMost = 4096;
  // What is allocated next has about that many bytes in all.
  void expect(std::size_t bytes) { expected_ = bytes + kCacheLine; }
  std::byte* allocate(std::size_t bytes) {
    constexpr std::size_t kAlignment = 16;
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::size_t beside = bytes % kCacheLine == 0 ? left_ % kCacheLine : 0;
    next_ += beside;
    left_ -= beside;
    if (bytes > left_) {
      // As large as what is expected in one go, else each larger than the one before.
      std::size_t chunk = std::clamp(2 * last_chunk_, kLeastChunk, kUsualChunk);
      if (expected_ > kLeastChunk) chunk = std::min(expected_, kMostChunk);
      expected_ -= std::min(expected_, chunk);
      last_chunk_ = chunk;
      chunks_.emplace_back(new (kLine) std::byte[chunk]);
      next_ = chunks_.back().get();
      left_ = chunk;
    }
    left_ -= bytes;
    return std::exchange(next_, next_ + bytes);
  }

 private:
  static constexpr std::size_t kLeastChunk = kMost, kUsualChunk = 256 << 10, kMostChunk = 1 << 20, kCacheLine = 64;
  static constexpr std::align_val_t kLine{kCacheLine};
  struct Free {
    void operator()(std::byte* chunk) const { operator delete[](chunk, kLine); }
  };

  std::vector<std::unique_ptr<std::byte[], Free>> chunks_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0, expected_ = 0, last_chunk_ = 0;
};

// One word, for there may be millions. Not thread-safe, but snapshots may be let go on any thread. Who uses it knows
// the size, which never changes.
class Weights {
 public:
  // Where the next weights are written.
  struct Next {
    std::byte* bytes;
    std::shared_ptr<std::byte[]> owner;  // null: small
  };

  Weights(Slab& slab, std::size_t size)
      : word_(size <= Slab::kMost ? reinterpret_cast<std::uintptr_t>(slab.allocate(size))
                                  : reinterpret_cast<std::uintptr_t>(new Large) | kLarge) {}
  ~Weights() {
    if (is_large()) delete &large();
  }
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  void assign(const std::byte* bytes, std::size_t size) {
    if (is_large()) large() = {detail::allocate_host(size)};
    if (size > 0) std::memcpy(is_large() ? large().bytes.get() : small(), bytes, size);
  }
  bool is_large() const { return (word_ & kLarge) != 0; }
  const std::byte* data() const { return is_large() ? large().bytes.get() : small(); }
  // They will be used soon. Thread-safe.
  void prefetch(std::size_t size) const {
    constexpr std::size_t kLine = 64, kPrefetched = 2048;
    if (is_large()) return;
    for (std::size_t i = 0; i < size && i < kPrefetched; i += kLine) __builtin_prefetch(small() + i, 1);
  }
  std::shared_ptr<const std::byte[]> share(std::size_t size) const {
    if (is_large() && !large().callers) return large().bytes;
    std::shared_ptr<std::byte[]> copy = detail::allocate_host(size);
    if (size > 0) std::memcpy(copy.get(), data(), size);
    return copy;
  }
  // In place of these, unless somebody holds these.
  Next writable(std::size_t size) {
    if (!is_large()) return {small(), nullptr};
    std::shared_ptr<std::byte[]> next;
    if (large().foreign || large().bytes.use_count() != 1)
      next = detail::allocate_host(size);
    else
      next = large().bytes;  // counted by an operation that comes after those of whoever let go
    return {next.get(), next};
  }
  void set(Next next) {
    if (next.owner && next.owner != large().bytes) large() = {std::move(next.owner)};
  }
  // Large ones: keeps what somebody else wrote and still may read, and does not write to it.
  void adopt(std::shared_ptr<const std::byte[]> bytes) {
    large() = {std::const_pointer_cast<std::byte[]>(std::move(bytes)), true};
  }
  // Large ones: the new weights were written to a caller's memory, and stay there.
  void keep_at(std::shared_ptr<std::byte[]> place) { large() = {std::move(place), true, true}; }

 private:
  struct Large {
    std::shared_ptr<std::byte[]> bytes;
    bool foreign = false;  // not written to
    bool callers = false;
  };
  static constexpr std::uintptr_t kLarge = 1;

  Large& large() const { return *reinterpret_cast<Large*>(word_ & ~kLarge); }
  std::byte* small() const { return reinterpret_cast<std::byte*>(word_); }

  const std::uintptr_t word_;
};

}  // namespace paceline
