#pragma once
// Records of the same size by row number, in memory that grows with the rows that are there. Records never move.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparse/block_pages.h"
#include "sparse/prefetch.h"

namespace paceline {

class RowStore {
 public:
  using Slot = std::uint32_t;
  static constexpr Slot kAbsent = 0;

  // An index page covers 2^block_bits neighbouring rows.
  RowStore(int block_bits, std::size_t record_bytes);

  Slot find(std::int64_t row) const;
  // Of many rows; neighbours in order are quicker.
  void find(std::span<const std::int64_t> rows, Slot* slots) const { slots_.get(rows, slots); }
  // Adds a record of zeros for a row that has none. Throws OutOfMemory beyond 2^32 - 2 rows.
  Slot add(std::int64_t row);

  std::byte* record(Slot slot) const {
    const std::size_t number = slot - 1;
    return chunks_[number >> chunk_bits_].get() + (number & chunk_mask_) * record_bytes_;
  }
  // Into the cache, for writing.
  [[gnu::always_inline]] void prefetch(Slot slot) const {
    if (slot != kAbsent) prefetch_lines<1>(record(slot), record_bytes_);
  }

  std::size_t size() const { return size_; }
  std::size_t bytes() const;  // of memory
  // Rows from `begin` on, ascending, at most `limit`.
  std::vector<std::int64_t> rows_from(std::int64_t begin, std::size_t limit) const;

 private:
  // Memory of the system's own, zeros that take no room until they are written.
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(std::byte* memory) const;
  };
  using Chunk = std::unique_ptr<std::byte[], Unmap>;
  Chunk make_chunk() const;

  int block_bits_, chunk_bits_ = 0;
  std::size_t record_bytes_, chunk_mask_ = 0, size_ = 0;
  BlockPages<Slot> slots_;
  std::vector<Chunk> chunks_;
};

}  // namespace paceline
