#pragma once
// A map from row numbers to records of one size. A record has a head and a body. The memory grows with the number of
// rows that exist. Records never move. Heads are stored apart from bodies, so that a body fills whole cache lines.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "prefetch.h"
#include "rows/block_pages.h"
#include "rows/mapped_memory.h"

namespace paceline {

class RowStore {
 public:
  using Slot = std::uint32_t;
  static constexpr Slot kAbsent = 0;
  // Head and body begin at a multiple of 8 bytes. Bodies of at least four cache lines begin at a cache line.
  struct Record {
    std::byte* head;
    std::byte* body;
  };

  // An index page covers 2^block_bits neighbouring rows. `head_bytes`: a multiple of 8.
  RowStore(int block_bits, std::size_t head_bytes, std::size_t body_bytes);

  Slot find(std::int64_t row) const;
  // Finds the slots of many rows. Ascending rows are faster.
  void find(std::span<const std::int64_t> rows, Slot* slots) const { slots_.get(rows, slots); }
  // Adds a record of zeros for a row that has none. Throws OutOfMemory beyond 2^32 - 2 rows.
  Slot add(std::int64_t row);

  Record record(Slot slot) const {
    const std::size_t number = slot - 1, place = number & chunk_mask_;
    std::byte* const chunk = chunks_[number >> chunk_bits_].get();
    return {chunk + place * head_bytes_, chunk + bodies_ + place * body_stride_};
  }
  // Prefetches into the second-level cache, because the first-level cache can have fewer misses outstanding.
  [[gnu::always_inline]] void prefetch(Slot slot) const {
    if (slot == kAbsent) return;
    const Record at = record(slot);
    prefetch_lines<Cache::kSecond>(at.head, head_bytes_);
    prefetch_lines<Cache::kSecond>(at.body, body_bytes_);
  }

  std::size_t size() const { return size_; }
  std::size_t bytes() const;  // memory of rows and index
  // Rows from `begin` on, ascending, at most `limit`.
  std::vector<std::int64_t> rows_from(std::int64_t begin, std::size_t limit) const;

 private:
  MappedMemory make_chunk() const;

  int block_bits_, chunk_bits_ = 0;
  std::size_t head_bytes_, body_bytes_, body_stride_;
  std::size_t bodies_ = 0;  // offset of the bodies in a chunk
  std::size_t chunk_mask_ = 0, size_ = 0;
  BlockPages<Slot> slots_;
  std::vector<MappedMemory> chunks_;
};

}  // namespace paceline
