#pragma once
// The weights of a slice. Large weights are shared with snapshots, so that a pull copies nothing. Memory that a
// snapshot holds is never written to. Small weights lie side by side in a slab, and their snapshots are copies. Large
// weights may also be in memory of the caller (keep_at()). Only an update that is given this memory then writes there.
// Snapshots of such weights are copies too.

#include <paceline/detail/host_memory.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace paceline {

// Memory that is released all at once. Not thread-safe.
class Slab {
 public:
  // The largest block. Blocks are aligned to 16 bytes. Blocks of whole cache lines are aligned to cache lines.
  static constexpr std::size_t kMost = 4096;
  // A hint: the next blocks have about that many bytes in all.
  void expect(std::size_t bytes) { expected_ = (bytes + 2 * kCacheLine - 1) / kCacheLine * kCacheLine; }
  std::byte* allocate(std::size_t bytes) {
    constexpr std::size_t kAlignment = 16;
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::size_t beside = bytes % kCacheLine == 0 ? left_ % kCacheLine : 0;
    next_ += beside;
    left_ -= beside;
    if (bytes > left_) {
      // If bytes are expected, one chunk holds them, up to kMostChunk. Otherwise each chunk is twice as large as the
      // last, up to kUsualChunk.
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

// One word, because there may be millions of slices. Not thread-safe, but any thread may release snapshots. The caller
// passes the size of the weights, which never changes.
class Weights {
 public:
  // Memory for the next weights.
  struct Next {
    std::byte* bytes;
    std::shared_ptr<std::byte[]> owner;  // null for small weights
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
  // Prefetches small weights. Thread-safe.
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
  // Returns memory for the next weights. It is new memory if a snapshot holds the present weights, or if they must not
  // be written to. Otherwise it is the memory of the present weights.
  Next writable(std::size_t size) {
    if (!is_large()) return {small(), nullptr};
    std::shared_ptr<std::byte[]> next;
    if (large().foreign || large().bytes.use_count() != 1)
      next = detail::allocate_host(size);
    else
      next = large().bytes;  // in libstdc++, this copy orders later writes after the release of the last snapshot
    return {next.get(), next};
  }
  void set(Next next) {
    if (next.owner && next.owner != large().bytes) large() = {std::move(next.owner)};
  }
  // For large weights. Keeps weights that others wrote and may still read. Does not write to them.
  void adopt(std::shared_ptr<const std::byte[]> bytes) {
    large() = {std::const_pointer_cast<std::byte[]>(std::move(bytes)), true};
  }
  // For large weights. The new weights are in the caller's memory, and stay there.
  void keep_at(std::shared_ptr<std::byte[]> place) { large() = {std::move(place), true, true}; }

 private:
  struct Large {
    std::shared_ptr<std::byte[]> bytes;
    bool foreign = false;  // must not be written to
    bool callers = false;  // memory of the caller
  };
  static constexpr std::uintptr_t kLarge = 1;

  Large& large() const { return *reinterpret_cast<Large*>(word_ & ~kLarge); }
  std::byte* small() const { return reinterpret_cast<std::byte*>(word_); }

  const std::uintptr_t word_;
};

}  // namespace paceline
